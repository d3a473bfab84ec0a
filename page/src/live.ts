// News from the proxy by server-sent events. `fetch` reads them, for an EventSource sends no Authorization header.
// Each event carries ids alone; who shows such things asks again. Where there is no stream, time is the event.

import { API, connection, headers } from "./api";

export const TOPICS = ["call", "episode", "reward", "group", "adapter", "step", "status"] as const;
export type Topic = (typeof TOPICS)[number];
type Listener = (topic: Topic | "all") => void;

const POLL_MS = 2000;
/** The proxy says something every 10 s: one that is silent for so long is frozen, or away. */
const SILENCE_MS = 25_000;
const listeners = new Set<{ topics: readonly Topic[]; listener: Listener }>();
let lastId: string | null = null;
let open: AbortController | null = null;

export function subscribe(topics: readonly Topic[], listener: Listener): () => void {
  const entry = { topics, listener };
  listeners.add(entry);
  return () => listeners.delete(entry);
}

export function tell(topic: Topic | "all"): void {
  for (const { topics, listener } of listeners) if (topic === "all" || topics.includes(topic)) listener(topic);
}

export interface Parsed {
  event: string;
  data: string;
  id: string | null;
}

/** Takes text as it comes and gives the events that are complete; keeps the rest. */
export class EventParser {
  private rest = "";

  push(text: string): Parsed[] {
    this.rest = (this.rest + text).replaceAll("\r\n", "\n");
    const found: Parsed[] = [];
    for (let end = this.rest.indexOf("\n\n"); end >= 0; end = this.rest.indexOf("\n\n")) {
      const block = this.rest.slice(0, end);
      this.rest = this.rest.slice(end + 2);
      const parsed = parse(block);
      if (parsed) found.push(parsed);
    }
    return found;
  }
}

function parse(block: string): Parsed | null {
  let event = "message";
  let id: string | null = null;
  const data: string[] = [];
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon === 0) continue;
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") event = value;
    else if (name === "id") id = value;
    else if (name === "data") data.push(value);
  }
  return data.length || event !== "message" ? { event, data: data.join("\n"), id } : null;
}

function hear(parsed: Parsed): void {
  if (parsed.id !== null) lastId = parsed.id;
  if (parsed.event === "reset") tell("all");
  else if ((TOPICS as readonly string[]).includes(parsed.event)) tell(parsed.event as Topic);
}

async function stream(): Promise<"ended" | "absent"> {
  const stop = new AbortController();
  open = stop;
  const hang = (): void => {
    connection.set({ lost: true });
    stop.abort();
  };
  let silence = setTimeout(hang, SILENCE_MS);
  try {
    const more: Record<string, string> = lastId === null ? {} : { "last-event-id": lastId };
    const response = await fetch(`${API}/events/stream`, { headers: { ...headers(), ...more }, signal: stop.signal });
    if (response.status === 404) return "absent";
    if (!response.ok || !response.body) return "ended";
    const wasLost = connection.lost;
    connection.set({ lost: false });
    if (wasLost) tell("all");
    const parser = new EventParser();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return "ended";
      clearTimeout(silence);
      silence = setTimeout(hang, SILENCE_MS);
      for (const parsed of parser.push(value)) hear(parsed);
    }
  } catch {
    return "ended";
  } finally {
    clearTimeout(silence);
  }
}

const pause = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

/** Until somebody looks at the page. */
function seen(): Promise<void> {
  if (!document.hidden) return Promise.resolve();
  return new Promise((done) => {
    const look = (): void => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      done();
    };
    document.addEventListener("visibilitychange", look);
  });
}

/** For as long as the page is open. A browser has six connections to a server: a page out of sight takes none. */
export async function follow(): Promise<never> {
  let wait = 500;
  addEventListener("pagehide", () => open?.abort());
  document.addEventListener("visibilitychange", () => document.hidden && open?.abort());
  for (;;) {
    if (document.hidden) {
      await seen();
      tell("all");
    }
    const began = Date.now();
    const how = await stream();
    if (how === "absent") await pause(POLL_MS);
    else {
      // a stream that held for a while is asked for again at once
      wait = Date.now() - began > 10_000 ? 500 : Math.min(wait * 1.5, 5000);
      await pause(wait);
    }
    if (!document.hidden) tell("all");
  }
}
