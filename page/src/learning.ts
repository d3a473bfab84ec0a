// Reward over adapters: rows by adapter, split and arm, as series for a chart. Versions stand side by side in their
// order, whatever their numbers: one version numbered 90 takes one step as any other.

import { NO_ADAPTER } from "./names";
import type { Series } from "./parts/chart";
import type { LearningAnswer } from "./types";

export function versionOf(adapter: string): number {
  const at = adapter.lastIndexOf("@");
  const n = at < 0 ? 0 : Number(adapter.slice(at + 1));
  return Number.isFinite(n) ? n : 0;
}

export interface Curve {
  xs: number[];
  names: string[];
  series: Series[];
}

/** A line for each series of an answer by time or adapter, in the order in which they come. */
export function linesOf(answer: LearningAnswer, by: "adapter" | "time", what: "mean" | "success"): Curve {
  const time = by === "time";
  const place = (p: LearningAnswer["points"][number]): string | number => (time ? p.start : (p.adapter ?? ""));
  const places = [...new Set(answer.points.map(place))].sort((a, b) =>
    time ? Number(a) - Number(b) : versionOf(String(a)) - versionOf(String(b)) || String(a).localeCompare(String(b)),
  );
  // by task, tag, …: the rest has none
  const unnamed = answer.points.some((p) => p.series !== null) ? "none" : "all";
  const names = [...new Set(answer.points.map((p) => p.series ?? unnamed))];
  const series = names.slice(0, COLOURS.length * 2).map((name, n) => {
    const mine = new Map(answer.points.filter((p) => (p.series ?? unnamed) === name).map((p) => [place(p), p]));
    const cells = places.map((at) => mine.get(at));
    return {
      name,
      colour: ROLES[name] ?? (COLOURS[n % COLOURS.length] as string),
      dashed: n >= COLOURS.length || name === "control" || name === NO_ADAPTER,
      ys: cells.map((c) => c?.[what] ?? null),
      intervals: cells.map((c): [number, number] | null => (!c ? null : what === "mean" ? [c.low, c.high] : [c.success_low, c.success_high])),
      counts: cells.map((c) => c?.n ?? null),
    };
  });
  return { xs: time ? places.map(Number) : places.map((_, n) => n), names: places.map(String), series };
}

/** What was imported, or another server answered, is no run of ours: it is drawn apart. */
const ROLES: Record<string, string> = { live: "live", control: "control", "held-out": "heldout", [NO_ADAPTER]: "series-6" };
const COLOURS = ["live", "control", "heldout", "candidate", "refused", "series-6"];
