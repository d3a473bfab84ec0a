// Messages as people read them, from the conversation's beginning to the chosen call: each once.

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { duration, number, percent, plural } from "../format";
import { historyOf, type Sent, type Step as Sending } from "../history";
import { isMarked } from "../markdown";
import { isSystem, read, toolName } from "../messages";
import { isImported } from "../names";
import type { Call, Json, Message } from "../types";
import { KIND_NAMES, type Node, pathTo } from "../tree";
import { Markdown } from "./markdown";
import { Long, Mark } from "./ui";

const AT_ONCE = 40;
/** Characters from which a thought, a tool's call or its result is shown folded. */
const FOLDED = 6000;
/** Characters from which a reply is shown as it is: a long text has a search instead. */
const RENDERED = 20_000;
const sizeOf = (text: string): string => (text.length < FOLDED ? "" : `, ${number(text.length / 1000)} kB`);

export function MessageBox({ message, note }: { message: Message; note?: string }): JSX.Element {
  const said = read(message);
  const [raw, setRaw] = useState(false);
  const marked = useMemo(() => said.role === "assistant" && said.text.length < RENDERED && isMarked(said.text), [said.role, said.text]);
  return (
    <div class={`message ${said.role}`}>
      <div class="role">
        <strong>{said.role}</strong>
        {said.answers ? <span>answers {said.answers}</span> : null}
        {note ? <span>{note}</span> : null}
        {said.others.map((kind, n) => (
          <span class="tag" key={n}>
            {kind}
          </span>
        ))}
        {marked ? (
          <button type="button" class="plain" aria-pressed={raw} onClick={() => setRaw(!raw)}>
            raw text
          </button>
        ) : null}
      </div>
      {said.thought ? (
        <details class="thought" open={said.thought.length < FOLDED}>
          <summary class="small soft">thought{sizeOf(said.thought)}</summary>
          <Long text={said.thought} />
        </details>
      ) : null}
      {said.text && said.answers ? (
        <details open={said.text.length < FOLDED}>
          <summary class="small soft">result{sizeOf(said.text)}</summary>
          <Long text={said.text} />
        </details>
      ) : marked && !raw ? (
        <Markdown text={said.text} />
      ) : said.text ? (
        <Long text={said.text} />
      ) : null}
      {said.images.map((source, n) => (
        <img key={n} src={source} alt={`image ${n + 1} of this message`} />
      ))}
      {said.uses.map((use, n) => (
        <details class="args" key={n} open={use.args.length < FOLDED}>
          <summary class="small">
            calls <strong>{use.name}</strong> <span class="soft">{use.id}</span>{sizeOf(use.args)}
          </summary>
          <Long text={use.args} />
        </details>
      ))}
      {!said.text && !said.thought && !said.uses.length && !said.others.length ? <span class="soft small">empty</span> : null}
    </div>
  );
}

export function Tools({ tools }: { tools: Json[] }): JSX.Element | null {
  if (!tools.length) return null;
  return (
    <details class="message system">
      <summary class="small">
        {number(tools.length)} {tools.length === 1 ? "tool" : "tools"} offered: {tools.map(toolName).join(", ").slice(0, 300)}
      </summary>
      {tools.map((tool, n) => (
        <Long key={n} text={JSON.stringify(tool, null, 1)} />
      ))}
    </details>
  );
}

function outcomeOf(call: Call): JSX.Element {
  if (call.outcome !== "ok") return <Mark kind="bad">{call.outcome}</Mark>;
  return call.trainable ? (
    <Mark kind="good">trainable</Mark>
  ) : (
    <Mark kind="idle">not trainable: {call.untrainable_reason ?? "no reason known"}</Mark>
  );
}

/** A message as the chosen call sent it. What earlier calls sent in its place is folded away below it. */
function SentBox({ sent, note }: { sent: Sent; note?: string }): JSX.Element {
  if (!sent.until) return <MessageBox message={sent.message} note={note} />;
  const { role } = read(sent.message);
  const at = `call ${sent.until.number + 1}`;
  return (
    <>
      {sent.instead.map((next, n) => (
        <SentBox key={n} sent={next} note={next.until ? undefined : `as ${at} sent it, not as before`} />
      ))}
      <details class="gone">
        <summary class="small">{sent.instead.length ? `${role}, before ${at} changed it` : `${role}: ${at} left this out`}</summary>
        <MessageBox message={sent.message} note={note} />
      </details>
    </>
  );
}

function Step(props: { step: Sending; chosen: boolean; tools: boolean; onChoose: (id: string) => void }): JSX.Element {
  const { chosen, onChoose } = props;
  const { node, own, reply, changed, leftOut } = props.step;
  const { call } = node;
  const edits = [changed ? `changed ${plural(changed, "earlier message")}` : "", leftOut ? `left out ${number(leftOut)}` : ""];
  return (
    <section data-call={call.id} aria-label={`Call ${call.number + 1}`}>
      <div class={`step ${chosen ? "chosen" : ""}`}>
        <button type="button" aria-pressed={chosen} onClick={() => onChoose(call.id)}>
          call {call.number + 1}
        </button>
        {node.kind === "turn" ? null : <strong>{KIND_NAMES[node.kind]}</strong>}
        <span>{call.adapter ?? call.model}</span>
        {isImported(call) ? <span>imported</span> : <span>{duration(call.seconds)}</span>}
        {outcomeOf(call)}
        {changed + leftOut ? <Mark kind="candidate">{edits.filter(Boolean).join(", ")}</Mark> : null}
      </div>
      {props.tools ? <Tools tools={call.tools} /> : null}
      {own.map((sent, n) => (
        <SentBox key={n} sent={sent} />
      ))}
      {reply.map((sent, n) => (
        <SentBox
          key={`reply-${n}`}
          sent={sent}
          note={call.reply.length > 1 ? `sample ${n + 1} of ${call.reply.length}` : (call.finish_reason ?? undefined)}
        />
      ))}
      {call.error ? (
        <div class="message tool">
          <div class="role">
            <strong>error</strong> <span>HTTP {call.status}</span>
          </div>
          <Long text={call.error} />
        </div>
      ) : null}
    </section>
  );
}

/** The last calls of the path first, the earlier ones on demand: a run of 2,000 calls opens as fast as one of two. */
export function Transcript(props: {
  nodes: Node[];
  chosen: string;
  onChoose: (id: string) => void;
  /** Go to the chosen call at once; else only when another one is chosen, and the head of the view stays in sight. */
  jump?: boolean;
}): JSX.Element {
  const steps = useMemo(() => historyOf(pathTo(props.nodes, props.chosen)), [props.nodes, props.chosen]);
  const [shown, setShown] = useState(AT_ONCE);
  const from = Math.max(0, steps.length - shown);
  const box = useRef<HTMLDivElement>(null);
  const opened = useRef(props.chosen);
  useEffect(() => {
    if (steps.length < 2 || (!props.jump && opened.current === props.chosen)) return;
    opened.current = "";
    const step = [...(box.current?.querySelectorAll("[data-call]") ?? [])].at(-1);
    step?.scrollIntoView({ block: "nearest" });
  }, [props.chosen]);
  const system = steps.at(-1)?.node.call.messages.filter(isSystem) ?? [];
  return (
    <div ref={box}>
      {from > 0 ? (
        <>
          {system.map((message, n) => (
            <MessageBox key={n} message={message} />
          ))}
          <p>
            <button type="button" onClick={() => setShown(shown * 4)}>
              Show {number(Math.min(from, shown * 3))} earlier calls
            </button>{" "}
            <span class="soft small">{percent(from / steps.length)} of this conversation stand above</span>
          </p>
        </>
      ) : null}
      {steps.slice(from).map((step, n) => (
        <Step
          key={step.node.call.id}
          step={step}
          chosen={step.node.call.id === props.chosen}
          tools={
            from + n === 0 || JSON.stringify(steps[from + n - 1]?.node.call.tools) !== JSON.stringify(step.node.call.tools)
          }
          onChoose={props.onChoose}
        />
      ))}
    </div>
  );
}
