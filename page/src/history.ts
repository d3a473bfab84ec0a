// What the calls of one conversation sent: each message where a call first sent it, and what a later call sent in its
// place. Agents clear old tool results and rewrite messages, so a call need not send what the one before it did.

import { diff, facing } from "./diff";
import { isAssistant, read } from "./messages";
import type { Node } from "./tree";
import type { Call, Message } from "./types";

export interface Sent {
  message: Message;
  /** The first call that no longer sent it; null: the path's last call sent it, or answered it. */
  until: Call | null;
  /** What that call sent in its place; none where it left the message out. */
  instead: Sent[];
}

export interface Step {
  node: Node;
  own: Sent[];
  reply: Sent[];
  /** Earlier messages that this call sent otherwise, and that it left out. */
  changed: number;
  leftOut: number;
}

interface Slot {
  sent: Sent;
  /** As the last call wrote it: clients write the same message in their own way. */
  message: Message;
}

interface Plain {
  role: string;
  text: string;
}

const plain = new WeakMap<object, Plain>();

/** Without spaces, ids, thoughts and fields in which clients differ from what the engine sent. */
function plainOf(message: Message): Plain {
  const known = typeof message === "object" && message !== null ? plain.get(message) : undefined;
  if (known) return known;
  const said = read(message);
  const text = [said.text, ...said.uses.flatMap((u) => [u.name, u.args]), ...said.others].join("").replace(/\s+/g, "");
  const found = { role: isAssistant(message) ? "assistant" : said.role === "developer" ? "system" : said.role, text };
  if (typeof message === "object" && message !== null) plain.set(message, found);
  return found;
}

const keyOf = (turn: Slot[]): string => [plainOf(turn[0]?.message ?? null).role, ...turn.map((s) => plainOf(s.message).text)].join("");
const fresh = (message: Message): Slot => ({ sent: { message, until: null, instead: [] }, message });

/** A reply may come back as several messages: those that the assistant wrote in a row are one turn. */
function turnsOf(slots: Slot[]): Slot[][] {
  const turns: Slot[][] = [];
  for (const slot of slots) {
    const last = turns.at(-1);
    if (last && isAssistant(slot.message) && isAssistant(last[0]?.message ?? null)) last.push(slot);
    else turns.push([slot]);
  }
  return turns;
}

/** `path`: calls that extend one another, the first one first. */
export function historyOf(path: Node[]): Step[] {
  let now: Slot[] = [];
  let samples: Slot[] = [];
  return path.map((node) => {
    const { messages } = node.call;
    const step: Step = { node, own: [], reply: [], changed: 0, leftOut: 0 };
    const before = [...now, ...continued(samples, messages)];
    let n = 0;
    while (n < before.length && n < messages.length && alike(before[n]?.message, messages[n])) n += 1;
    const inTurn = (m: Message | undefined): boolean => m !== undefined && isAssistant(m);
    while (n > 0 && inTurn(before[n - 1]?.message) && (inTurn(before[n]?.message) || inTurn(messages[n]))) n -= 1;
    now = [...before.slice(0, n), ...merge(step, turnsOf(before.slice(n)), turnsOf(messages.slice(n).map(fresh)))];
    samples = node.call.reply.map(fresh);
    step.reply = samples.map((s) => s.sent);
    return step;
  });
}

export const alike = (a: Message | undefined, b: Message | undefined): boolean =>
  a === b || (a !== undefined && b !== undefined && plainOf(a).role === plainOf(b).role && plainOf(a).text === plainOf(b).text);

/** The sample that the messages go on with, else the first. */
function continued(samples: Slot[], messages: Message[]): Slot[] {
  const found = samples.length > 1 ? samples.find((s) => messages.some((m) => alike(s.message, m))) : undefined;
  return found ? [found] : samples.slice(0, 1);
}

/** What the call sent, and in `step` how that differs from what it might have. */
function merge(step: Step, before: Slot[][], after: Slot[][]): Slot[] {
  const found: Slot[] = [];
  let [i, j] = [0, 0];
  for (const pair of facing(diff(before.map(keyOf), after.map(keyOf)))) {
    const old = pair.left === null ? null : (before[i++] as Slot[]);
    const mine = pair.right === null ? null : (after[j++] as Slot[]);
    if (old && mine && pair.left === pair.right) {
      found.push(...mine.map((s, n) => ({ message: s.message, sent: (old[Math.min(n, old.length - 1)] as Slot).sent })));
      continue;
    }
    if (mine) found.push(...mine);
    const role = old && plainOf(old[0]?.message ?? null).role;
    const inPlace = mine !== null && role === plainOf(mine[0]?.message ?? null).role;
    // a prompt of mere text goes on with the text before it
    const grown = inPlace && role === "text" && (pair.right as string).startsWith(pair.left as string);
    if (old && !grown) {
      for (const { sent } of old) sent.until = step.node.call;
      if (inPlace) (old[0] as Slot).sent.instead = mine.map((s) => s.sent);
      step[inPlace ? "changed" : "leftOut"] += 1;
    }
    if (mine && (!old || grown || !inPlace)) step.own.push(...mine.map((s) => s.sent));
  }
  return found;
}
