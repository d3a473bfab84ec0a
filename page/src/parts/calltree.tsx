// The tree of an episode's calls. Arrow keys, j and k move in it; a long run draws the rows in sight alone.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { duration, plural } from "../format";
import { headline, toolName } from "../messages";
import { isImported } from "../names";
import { KIND_NAMES, type Node } from "../tree";
import { visible } from "./table";

const ROW = 26;

export function CallTree(props: { nodes: Node[]; chosen: string; onChoose: (id: string) => void }): JSX.Element {
  const { nodes, chosen, onChoose } = props;
  const box = useRef<HTMLDivElement>(null);
  const [[top, height], setSight] = useState<[number, number]>([0, 900]);
  const at = nodes.findIndex((n) => n.call.id === chosen);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const look = (): void => setSight([element.scrollTop, element.clientHeight]);
    look();
    element.addEventListener("scroll", look, { passive: true });
    return () => element.removeEventListener("scroll", look);
  }, []);
  useEffect(() => {
    const element = box.current;
    if (!element || at < 0) return;
    const y = at * ROW;
    if (y < element.scrollTop) element.scrollTop = y;
    else if (y + ROW > element.scrollTop + element.clientHeight) element.scrollTop = y + ROW - element.clientHeight;
  }, [at]);
  const pressed = (event: KeyboardEvent): void => {
    const by = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    const next = by ? nodes[at + by] : event.key === "Home" ? nodes[0] : event.key === "End" ? nodes.at(-1) : undefined;
    if (!next) return;
    event.preventDefault();
    onChoose(next.call.id);
    requestAnimationFrame(() => box.current?.querySelector<HTMLElement>('[aria-selected="true"]')?.focus());
  };
  const [first, last] = visible(top, height, nodes.length, ROW);
  return (
    <div class="depth" ref={box}>
      <div class="tree" role="tree" aria-label="Calls" onKeyDown={pressed}>
        <div role="none" style={{ height: `${first * ROW}px` }} />
        {nodes.slice(first, last).map((node) => {
          const { call } = node;
          const isChosen = call.id === chosen;
          const uses = node.own.length ? headline(node.own.at(-1), 60) : headline(call.reply[0], 60);
          return (
            <button
              type="button"
              role="treeitem"
              key={call.id}
              data-kind={node.kind}
              aria-level={node.depth + 1}
              aria-selected={isChosen}
              tabIndex={isChosen ? 0 : -1}
              style={{ height: `${ROW}px` }}
              title={describe(node)}
              onClick={() => onChoose(call.id)}
            >
              {Array.from({ length: Math.min(node.depth, 8) }, (_, n) => (
                <span class="rail" key={n} aria-hidden="true" />
              ))}
              <span class={`mark ${call.outcome !== "ok" ? "bad" : call.trainable ? "live" : "idle"}`}>
                <span class="soft">{call.number + 1}</span>{" "}
                {node.kind === "turn" ? null : <span class="kind">{KIND_NAMES[node.kind]} </span>}
                {!call.kind || call.kind === "main" || call.kind === node.kind ? null : <span class="kind">{call.kind === "subagent" ? KIND_NAMES.subagent : call.kind} </span>}
                {call.reply.length > 1 ? <span class="kind">{call.reply.length} samples </span> : null}
                {uses}
              </span>
              {isImported(call) ? null : <span class="took soft">{duration(call.seconds)}</span>}
            </button>
          );
        })}
        <div role="none" style={{ height: `${(nodes.length - last) * ROW}px` }} />
      </div>
    </div>
  );
}

const WHY: Record<Node["kind"], string> = {
  start: "begins the run",
  turn: "continues the call above",
  branch: "goes on with the same call as another one does",
  edit: "the same conversation with a message changed",
  retry: "the same request again, for the first one failed or was given up",
  failed: "failed or was given up; the request was made again",
  sample: "the same request again: another sample",
  subagent: "begins a conversation of its own while the one that called it waits",
  compaction: "the conversation goes on with its older messages shortened",
  conversation: "begins another conversation in the same episode",
};

function describe({ call, kind }: Node): string {
  const tools = call.tools.length ? `; tools: ${call.tools.map(toolName).join(", ").slice(0, 200)}` : "";
  return `Call ${call.number + 1}: ${WHY[kind]}. ${call.outcome}, ${plural(call.completion_tokens, "token")}${tools}`;
}
