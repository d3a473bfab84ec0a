// From an episode's calls to its tree. The proxy records which call each one extends; what a call without a parent, or
// a second child, is to its run is read off the messages.

import { alike } from "./history";
import { isAssistant, read, systemOf, textOf } from "./messages";
import type { Call, Message } from "./types";

export type Kind =
  | "start"
  | "turn"
  | "branch"
  | "edit"
  | "retry"
  | "failed"
  | "sample"
  | "subagent"
  | "compaction"
  | "conversation";

export const KIND_NAMES: Record<Kind, string> = {
  start: "start",
  turn: "turn",
  branch: "branch",
  edit: "edited",
  retry: "retry",
  failed: "failed attempt",
  sample: "parallel sample",
  subagent: "sub-agent",
  compaction: "compacted",
  conversation: "new conversation",
};

export interface Node {
  call: Call;
  kind: Kind;
  /** The node below which it is drawn: the call that it extends, that it repeats, or that began it. */
  parent: Node | null;
  /** How far to the right it stands; a turn stands right below its parent. */
  depth: number;
  /** Messages that this call sent and its parent had not. */
  own: Message[];
  /** It goes on right below its parent, and does not stand aside. */
  straight: boolean;
}

/** Calls that went on from one another, without branching off. */
interface Line {
  calls: Node[];
  system: string;
  tools: string;
}

const same = (a: Message | undefined, b: Message | undefined): boolean =>
  a === b || (a !== undefined && b !== undefined && JSON.stringify(a) === JSON.stringify(b));

export function commonPrefix(a: Message[], b: Message[]): number {
  let n = 0;
  while (n < a.length && n < b.length && same(a[n], b[n])) n += 1;
  return n;
}

/** What a call added to the one that it extends: the parent's reply, as the client sent it back, is none of it. */
export function ownMessages(call: Call, parent: Call | null): Message[] {
  if (!parent) return call.messages;
  let n = commonPrefix(parent.messages, call.messages);
  // a client may write the older messages in its own way; the tree says that they are the same conversation
  if (n < parent.messages.length && call.messages.length > parent.messages.length) n = parent.messages.length;
  while (n < call.messages.length && isAssistant(call.messages[n] as Message)) n += 1;
  return call.messages.slice(n);
}

const end = (call: Call): number => call.at + call.seconds;

class Builder {
  private nodes = new Map<string, Node>();
  private lines = new Map<Node, Line>();
  private all: Line[] = [];
  private children = new Map<string | null, Node[]>();

  constructor(private calls: Call[]) {}

  build(): Node[] {
    const continued = new Set(this.calls.map((c) => c.extends));
    for (const call of this.calls) {
      const parent = (call.extends && this.nodes.get(call.extends)) || null;
      const node = parent ? this.child(call, parent) : this.root(call, continued);
      this.nodes.set(call.id, node);
      const siblings = this.children.get(parent?.call.id ?? null) ?? [];
      siblings.push(node);
      this.children.set(parent?.call.id ?? null, siblings);
    }
    return this.order();
  }

  private child(call: Call, parent: Node): Node {
    const own = ownMessages(call, parent.call);
    const siblings = this.children.get(parent.call.id) ?? [];
    const node: Node = { call, kind: "turn", parent, depth: 0, own, straight: false };
    const first = siblings[0];
    const twin = siblings.findLast(
      (s) => s.own.length === own.length && commonPrefix(s.own, own) === own.length && sameHistory(s.call.messages, call.messages),
    );
    if (twin && repeats(twin.call, call) === "retry") return this.instead(twin, node);
    if (twin) Object.assign(node, { kind: "sample", parent: twin.kind === "sample" ? twin.parent : twin });
    else if (first && own[0] && !isAssistant(own[0]) && sameRole(own[0], first.own[0])) Object.assign(node, { kind: "edit", parent: first });
    else if (first) node.kind = "branch";
    const line = this.lines.get(parent) as Line;
    if (node.kind === "turn") {
      node.straight = true;
      line.calls.push(node);
      this.lines.set(node, line);
    } else this.open(node);
    return node;
  }

  /** A request made again: it takes the place of the attempt that failed, which stands aside from then on. */
  private instead(failed: Node, node: Node): Node {
    const line = this.lines.get(failed) as Line;
    node.kind = "retry";
    node.parent = failed.parent;
    node.straight = failed.straight;
    failed.kind = "failed";
    failed.straight = false;
    if (line.calls.at(-1) === failed) line.calls[line.calls.length - 1] = node;
    this.lines.set(node, line);
    return node;
  }

  private root(call: Call, continued: Set<string | null>): Node {
    const node: Node = { call, kind: "start", parent: null, depth: 0, own: call.messages, straight: false };
    const system = systemOf(call);
    const tools = JSON.stringify(call.tools);
    if (this.all.length) this.place(node, system, tools, continued);
    if (!this.lines.has(node)) this.open(node, system, tools);
    node.straight ||= node.kind === "compaction" || node.kind === "conversation";
    return node;
  }

  /** What a call that extends none is to the calls before it. */
  private place(node: Node, system: string, tools: string, continued: Set<string | null>): void {
    const { call } = node;
    const earlier = [...this.nodes.values()];
    const twin = earlier.findLast(
      (n) => n.call.messages.length === call.messages.length && commonPrefix(n.call.messages, call.messages) === call.messages.length,
    );
    if (twin && JSON.stringify(twin.call.tools) === tools) {
      if (repeats(twin.call, call) === "retry") this.instead(twin, node);
      else Object.assign(node, { kind: "sample", parent: twin });
      return;
    }
    const alike = this.all.filter((line) => line.system === system && line.tools === tools);
    const closest = this.closest(call, alike);
    if (closest) {
      node.kind = closest.edited ? "edit" : "compaction";
      node.parent = closest.node;
      return;
    }
    // a line that goes on has a later call: this one was made while it waited
    const goesOn = (line: Line): boolean => this.lastAt(line, continued) > call.at;
    const before = earlier.filter((n) => end(n.call) <= call.at + 0.001);
    const waiting = before.filter((n) => goesOn(this.lines.get(n) as Line));
    const sibling = alike.findLast((l) => l.calls[0]?.kind === "subagent" && l.calls[0].call.messages.length === call.messages.length);
    const above = sibling?.calls[0]?.parent;
    const shrunk = alike.findLast((line) => {
      const last = line.calls.at(-1) as Node;
      return line.calls.length > 1 && !goesOn(line) && last.call.messages.length > call.messages.length;
    });
    const atStart = shrunk && call.messages.length <= (shrunk.calls[0]?.call.messages.length ?? 0);
    if (above && goesOn(this.lines.get(above) as Line)) Object.assign(node, { kind: "subagent", parent: above });
    else if (shrunk && !(waiting.length && atStart)) Object.assign(node, { kind: "compaction", parent: shrunk.calls.at(-1) });
    else {
      const kind = alike.length > 0 && !waiting.length ? "conversation" : "subagent";
      Object.assign(node, { kind, parent: spawner(call, waiting) ?? latest(before) ?? earlier.at(-1) });
    }
  }

  /** The call whose messages begin as this one's do, beyond the system prompt, if there is one. */
  private closest(call: Call, alike: Line[]): { node: Node; edited: boolean } | null {
    let best: { node: Node; edited: boolean; length: number } | null = null;
    for (const line of alike) {
      const system = line.calls[0]?.call.messages.findIndex((m) => !isSystemRole(m)) ?? 0;
      for (const node of line.calls) {
        const n = commonPrefix(node.call.messages, call.messages);
        if (n <= Math.max(0, system) || (best && n <= best.length)) continue;
        const [theirs, mine] = [node.call.messages[n], call.messages[n]];
        best = { node, edited: sameRole(mine, theirs), length: n };
      }
    }
    if (!best || best.edited) return best;
    return { ...best, node: this.lines.get(best.node)?.calls.at(-1) ?? best.node };
  }

  private lastAt(line: Line, continued: Set<string | null>): number {
    const last = line.calls.at(-1) as Node;
    if (!continued.has(last.call.id)) return last.call.at;
    // its next call comes later in the list
    return this.calls.findLast((c) => c.extends === last.call.id)?.at ?? last.call.at;
  }

  private open(node: Node, system = systemOf(node.call), tools = JSON.stringify(node.call.tools)): void {
    const line = { calls: [node], system, tools };
    this.lines.set(node, line);
    this.all.push(line);
  }

  /** Each node above what follows from it: first what stands aside, then the turn that goes on. */
  private order(): Node[] {
    const below = new Map<Node | null, Node[]>();
    for (const node of this.nodes.values()) {
      const list = below.get(node.parent) ?? [];
      list.push(node);
      below.set(node.parent, list);
    }
    const found: Node[] = [];
    const stack: [Node, number][] = [...(below.get(null) ?? [])].reverse().map((node) => [node, 0]);
    for (let next = stack.pop(); next; next = stack.pop()) {
      const [node, depth] = next;
      node.depth = depth;
      found.push(node);
      const children = below.get(node) ?? [];
      const [onward, aside] = [children.filter((n) => n.straight), children.filter((n) => !n.straight)];
      for (const child of onward.reverse()) stack.push([child, depth]);
      for (const child of aside.reverse()) stack.push([child, depth + 1]);
    }
    return found;
  }
}

/** Whether two calls sent the same, as far as clients write it in one way: one that cleared a tool result did not. */
function sameHistory(a: Message[], b: Message[]): boolean {
  return a.length === b.length && a.every((message, n) => alike(message, b[n]));
}

/** Why the same request came again. */
function repeats(first: Call, again: Call): "retry" | "sample" {
  return first.outcome !== "ok" && again.at >= first.at ? "retry" : "sample";
}

/** Of the calls that wait: the one whose tool call speaks of what the sub-agent was asked, else the latest. */
function spawner(call: Call, waiting: Node[]): Node | undefined {
  const inner = read(call.messages.findLast((m) => roleOf(m) === "user") ?? null).text.trim();
  const speaks = waiting.filter((n) => inner.length >= 8 && n.call.reply.some((r) => textOf(r).includes(inner)));
  return latest(speaks.length ? speaks : waiting);
}

function latest(nodes: Node[]): Node | undefined {
  return nodes.reduce<Node | undefined>((best, n) => (!best || end(n.call) >= end(best.call) ? n : best), undefined);
}

function roleOf(message: Message | undefined): unknown {
  return typeof message === "object" && message !== null && !Array.isArray(message) ? message.role : "text";
}

function sameRole(a: Message | undefined, b: Message | undefined): boolean {
  return a !== undefined && b !== undefined && roleOf(a) === roleOf(b);
}

function isSystemRole(message: Message): boolean {
  return roleOf(message) === "system" || roleOf(message) === "developer";
}

/** All calls of an episode, each once, in the order in which the tree is drawn. */
export function treeOf(calls: Call[]): Node[] {
  return new Builder([...calls].sort((a, b) => a.number - b.number)).build();
}

/** The run's own last call: what sub-agents did, and attempts that failed, are no end of it. */
export function lastOfRun(nodes: Node[]): Node | undefined {
  const helpers = new Set<Node>();
  for (const node of nodes) if (node.kind === "subagent" || (node.parent && helpers.has(node.parent))) helpers.add(node);
  const own = nodes.filter((n) => !helpers.has(n) && n.kind !== "failed");
  return (own.length ? own : nodes).reduce<Node | undefined>((last, n) => (last && last.call.number > n.call.number ? last : n), undefined);
}

/** The calls from the conversation's beginning to this one, by what each extends. */
export function pathTo(nodes: Node[], id: string): Node[] {
  const byId = new Map(nodes.map((n) => [n.call.id, n]));
  const path: Node[] = [];
  const seen = new Set<string>();
  for (let at = byId.get(id); at && !seen.has(at.call.id); at = byId.get(at.call.extends ?? "")) {
    seen.add(at.call.id);
    path.push(at);
  }
  return path.reverse();
}
