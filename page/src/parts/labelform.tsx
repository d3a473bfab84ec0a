// What a person says of an episode: a thumb or a score, a better answer, a note. It is stored as a reward of source
// `human`, so it counts, and it is what judges are compared with.

import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { ApiError, withQuery, post } from "../api";
import { number } from "../format";
import { useKeys } from "../keyboard";
import { useMay } from "../may";
import { read } from "../messages";
import type { Call, JsonObject } from "../types";
import { Field, Lacks, Refused } from "./ui";

const OWN_ENTER = "summary, a:not([aria-current=true]), button:not([aria-pressed=true])";

interface Ack {
  stored: boolean;
}

/** Drawn, for not every machine has a font with thumbs. */
function Thumb({ up }: { up?: boolean }): JSX.Element {
  return (
    <svg class="thumb" viewBox="0 0 16 16" aria-hidden="true" {...(up ? {} : { transform: "rotate(180)" })}>
      <path d="M2 7h2.5v7H2zM6 14V7l2.6-5.2c.9 0 1.6.7 1.6 1.6V6.4h3.1c.8 0 1.4.7 1.2 1.5l-1.1 5c-.1.6-.7 1.1-1.3 1.1z" fill="currentColor" />
    </svg>
  );
}

function answerOf(call: Call): string {
  return call.reply[0] === undefined ? "" : read(call.reply[0]).text;
}

/** Give it a key for its episode: what was typed belongs to one. An effect that clears the fields would also clear what is typed before it runs. */
export function LabelForm(props: {
  episode: string;
  owner: string;
  /** The call whose answer can be written anew. */
  of: Call | undefined;
  /** It is the run's last one. */
  isLast: boolean;
  onDone: () => void;
}): JSX.Element {
  const { episode, owner, of, isLast } = props;
  const labels = useMay("inference", "reward", "grade", "judge");
  const [value, setValue] = useState<string>("");
  const [note, setNote] = useState("");
  // another call may be chosen meanwhile: what was begun stays with its own
  const [edit, setEdit] = useState<{ of: Call; text: string } | null>(null);
  const [name, setName] = useState("reward");
  const [error, setError] = useState<ApiError | null>(null);
  const [busy, setBusy] = useState(false);
  const ok = value.trim() !== "" && Number.isFinite(Number(value));
  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (!ok) return;
    setBusy(true);
    setError(null);
    const meta: JsonObject = {};
    if (edit && edit.text !== answerOf(edit.of)) Object.assign(meta, { edited: edit.text, edited_call: edit.of.id });
    try {
      await post<Ack>(withQuery(`/episodes/${encodeURIComponent(episode)}/rewards`, { key: owner }), {
        name,
        value: Number(value),
        source: "human",
        reason: note || null,
        meta,
      });
      props.onDone();
    } catch (e) {
      setError(e instanceof ApiError ? e : new ApiError(0, (e as Error).message));
    } finally {
      setBusy(false);
    }
  };
  const form = useRef<HTMLFormElement>(null);
  useKeys({
    "1": () => setValue("1"),
    "0": () => setValue("0"),
    c: () => form.current?.querySelector<HTMLInputElement>("[name=note]")?.focus(),
    // a click on the transcript, a thumb or the queue leaves the focus there: only what Enter would change keeps the key
    Enter: () => (ok && !busy && !document.activeElement?.matches(OWN_ENTER) ? form.current?.requestSubmit() : false),
  });
  if (!labels) return <Lacks scope="grade" to="label" />;
  return (
    <form class="panel" ref={form} onSubmit={(e) => void send(e)} aria-label="Your label">
      <div class="row" role="group" aria-label="Thumbs">
        <button type="button" aria-pressed={value === "1"} onClick={() => setValue("1")}>
          <Thumb up /> good
        </button>
        <button type="button" aria-pressed={value === "0"} onClick={() => setValue("0")}>
          <Thumb /> bad
        </button>
        <Field label="or a score" kind="narrow" error={value && !ok ? "a number, as 0.5" : null}>
          <input name="score" inputMode="decimal" value={value} aria-invalid={value && !ok ? "true" : undefined} onInput={(e) => setValue(e.currentTarget.value)} />
        </Field>
        <Field label="counts as" kind="narrow">
          <input name="reward-name" value={name} onInput={(e) => setName(e.currentTarget.value)} />
        </Field>
      </div>
      <Field label="note: why">
        <input name="note" value={note} onInput={(e) => setNote(e.currentTarget.value)} />
      </Field>
      {edit === null ? (
        <p>
          <button type="button" disabled={!of} onClick={() => of && setEdit({ of, text: answerOf(of) })}>
            Write a better {of && !isLast ? `answer of call ${of.number + 1}` : "last answer"}
          </button>
        </p>
      ) : (
        <Field label={`a better answer of call ${edit.of.number + 1}`}>
          <textarea name="edited" value={edit.text} onInput={(e) => setEdit({ ...edit, text: e.currentTarget.value })} />
        </Field>
      )}
      <Refused error={error} />
      <p class="row">
        <button class="primary" disabled={!ok || busy}>
          Save {ok ? number(Number(value)) : ""}
        </button>
        <span class="small soft">It replaces what anyone else said under the same name.</span>
      </p>
    </form>
  );
}
