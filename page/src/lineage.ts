// Where each adapter stands on the time axis: parents to the left, a lane for each branch that goes on.

import type { Action, Adapter } from "./types";

export interface Placed {
  adapter: Adapter;
  /** From 0 to 1, from the first adapter to the last. */
  x: number;
  lane: number;
  parent: Placed | null;
}

/** A time axis on which long pauses shrink: a gap counts as at most eight times the usual one. */
export function axis(times: number[]): Map<number, number> {
  const sorted = [...new Set(times)].sort((a, b) => a - b);
  const gaps = sorted.slice(1).map((t, n) => t - (sorted[n] as number));
  const usual = [...gaps].sort((a, b) => a - b)[Math.floor(gaps.length / 2)] ?? 1;
  let at = 0;
  const places = sorted.map((t, n) => {
    if (n) at += Math.min(gaps[n - 1] as number, 8 * (usual || 1));
    return [t, at] as const;
  });
  return new Map(places.map(([t, x]) => [t, at ? x / at : 0]));
}

export function place(adapters: Adapter[]): Placed[] {
  const sorted = [...adapters].sort((a, b) => a.created - b.created || a.version - b.version);
  const xs = axis(sorted.map((a) => a.created));
  const found = new Map<string, Placed>();
  const ends: Placed[] = [];
  for (const adapter of sorted) {
    const parent = (adapter.parent && found.get(adapter.parent)) || null;
    let lane = parent ? ends.indexOf(parent) : 0;
    // the parent's lane goes on; where another child has it, this one begins a lane
    if (lane < 0) lane = ends.length;
    const placed = { adapter, x: xs.get(adapter.created) ?? 0, lane, parent };
    ends[lane] = placed;
    found.set(adapter.name, placed);
  }
  return [...found.values()];
}

/** What a person can do with it, and why not more. */
export function actions(adapter: Adapter): { can: Action[]; whyNot: string | null } {
  const state = adapter.state;
  const serves = state === "candidate" || state === "live" || state === "loading";
  const gone = adapter.files === false;
  // refused by its replay a person may promote it; what the engine refused cannot be served
  const promotable = ["candidate", "retired", "rolled_back"].includes(state) || (state === "refused" && adapter.replay?.outcome === "refused");
  const whyNot = promotable ? (gone ? "its files are gone" : null) : state === "refused" ? "it was refused: publish it again" : null;
  const served = state === "candidate" || state === "live";
  const frozen = adapter.frozen || (state === "candidate" && adapter.gate?.reason.startsWith("frozen"));
  const can: Action[] = [];
  if ((promotable && !gone) || (state === "live" && Object.keys(adapter.kept_from ?? {}).length)) can.push("promote");
  if (serves) can.push("demote");
  if (served) can.push(frozen ? "unfreeze" : "freeze");
  return { can, whyNot };
}
