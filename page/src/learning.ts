// Reward over adapters: rows by adapter, split and arm, as series for a chart. Versions stand side by side in their
// order, whatever their numbers: one version numbered 90 takes one step as any other.

import type { Series } from "./parts/chart";
import type { LearningAnswer } from "./types";

export interface LearningPoint {
  adapter: string;
  version: number;
  split: string;
  arm: string;
  n: number;
  mean: number;
  se: number | null;
}

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

const LINES: { name: string; colour: string; dashed?: boolean; holds: (p: LearningPoint) => boolean }[] = [
  { name: "live", colour: "live", holds: (p) => p.split !== "eval" && p.arm !== "control" && p.arm !== "best" },
  { name: "control, at the same time", colour: "control", dashed: true, holds: (p) => p.split !== "eval" && (p.arm === "control" || p.arm === "best") },
  { name: "held-out (split = eval)", colour: "heldout", holds: (p) => p.split === "eval" },
];

/** Two rows of one line and adapter become one: their mean weighted by n, their standard errors combined. */
export function pool(points: LearningPoint[]): { n: number; mean: number; se: number | null } | null {
  const n = points.reduce((sum, p) => sum + p.n, 0);
  if (!n) return null;
  const mean = points.reduce((sum, p) => sum + p.mean * p.n, 0) / n;
  const known = points.every((p) => p.se !== null);
  const variance = points.reduce((sum, p) => sum + (p.n / n) ** 2 * (p.se ?? 0) ** 2, 0);
  return { n, mean, se: known ? Math.sqrt(variance) : null };
}

export function curveOf(points: LearningPoint[]): Curve {
  const adapters = [...new Set(points.map((p) => p.adapter))].sort((a, b) => versionOf(a) - versionOf(b) || a.localeCompare(b));
  const series = LINES.map((line) => {
    const cells = adapters.map((adapter) => pool(points.filter((p) => p.adapter === adapter && line.holds(p))));
    return {
      name: line.name,
      colour: line.colour,
      dashed: line.dashed,
      ys: cells.map((c) => c?.mean ?? null),
      errors: cells.map((c) => c?.se ?? null),
      counts: cells.map((c) => c?.n ?? null),
    };
  });
  return {
    xs: adapters.map((_, n) => n),
    names: adapters,
    series: series.filter((s) => s.ys.some((y) => y !== null)),
  };
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
      colour: COLOURS[n % COLOURS.length] as string,
      dashed: n >= COLOURS.length,
      ys: cells.map((c) => c?.[what] ?? null),
      errors: cells.map((c) => (what === "mean" ? c?.se : c?.success_se) ?? null),
      counts: cells.map((c) => c?.n ?? null),
    };
  });
  return { xs: time ? places.map(Number) : places.map((_, n) => n), names: places.map(String), series };
}

const COLOURS = ["live", "control", "heldout", "candidate", "refused", "series-6"];
