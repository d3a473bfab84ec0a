// The trainer's events as series. They come as lines of JSON; only the new ones are asked for.

import { request } from "./api";
import type { Annotations, TrainingEvent } from "./types";

/** Events kept in the page: the latest of them. */
const KEPT = 5000;

export interface Measure {
  name: string;
  title: string;
  unit?: string;
  says: string;
}

export const MEASURES: Measure[] = [
  { name: "reward", title: "Reward of the batch", says: "mean over the batch's episodes" },
  { name: "loss", title: "Loss", says: "of the first inner step" },
  { name: "kl", title: "KL of a step", unit: "nats", says: "a token, before against after the step" },
  { name: "entropy", title: "Entropy", unit: "nats", says: "mean over sampled tokens" },
  { name: "clipped", title: "Clip share", says: "share of tokens whose ratio was clipped" },
  { name: "staleness", title: "Staleness", unit: "versions", says: "mean versions behind the live adapter" },
  { name: "logprob_gap", title: "Trainer–engine gap", unit: "nats", says: "mean distance of the log-probabilities" },
  { name: "tokens_per_second", title: "Speed", unit: "tokens/s", says: "computed tokens a second" },
  { name: "grad_norm", title: "Gradient norm", says: "before clipping" },
  { name: "learning_rate", title: "Learning rate", says: "that the step was made with" },
];

export async function readEvents(after: number, signal: AbortSignal): Promise<TrainingEvent[]> {
  const response = await request(`/training/events?after=${after}`, { signal });
  const text = await response.text();
  const found: TrainingEvent[] = [];
  for (const line of text.split("\n")) {
    if (!line) continue;
    try {
      found.push(JSON.parse(line) as TrainingEvent);
    } catch {
      break; // a line that broke off comes again with the next question
    }
  }
  return found;
}

export function merge(before: TrainingEvent[], fresh: TrainingEvent[]): TrainingEvent[] {
  const last = before.at(-1)?.id ?? 0;
  return [...before, ...fresh.filter((e) => e.id > last)].slice(-KEPT);
}

export function valueOf(event: TrainingEvent, name: string): number | null {
  const value = event.data[name];
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

export function steps(events: TrainingEvent[]): TrainingEvent[] {
  return events.filter((e) => e.kind === "step");
}

/** Changes of what is served, pauses and people's notes: lines across charts over time. */
export function marks(annotations: Annotations["annotations"]): { x: number; name: string }[] {
  return annotations
    .filter((a) => a.kind !== "adapter" && a.kind !== "live")
    .map((a) => ({ x: a.at, name: a.kind === "annotation" ? a.text : `${a.kind} ${a.text}`.trim() }));
}
