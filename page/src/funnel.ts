// From calls to trained groups: how many came how far, and what was lost on the way, with the fix of each loss.

import { link } from "./route";
import type { FunnelLine, Status } from "./types";

export interface FunnelStage {
  name: string;
  count: number;
  href?: string;
  losses: FunnelLine[];
}

const OF_STAGE: Record<string, string> = {
  engine: "calls",
  store: "calls",
  calls: "calls",
  untrainable: "calls",
  episodes: "episodes",
  groups: "groups",
  judge: "scored",
  reward: "scored",
  ready: "leased",
  trainer: "leased",
  lost: "trained",
  step: "trained",
  gate: "live",
};

const LEASED = ["leased", "trained", "skipped"];
const SCORED = [...LEASED, "ready", "stale", "dropped", "expired"];
const COMPLETE = [...SCORED, "waiting_reward", "parked"];

/** Training groups that have come at least this far. Evaluation groups never train: they are none of them. */
function groupsIn(groups: Record<string, number>, states: string[]): number {
  return states.reduce((n, state) => n + (groups[state] ?? 0), 0);
}

/** What somebody should change, the worst first as the proxy has it, and what changes by itself. */
export function causesOf(status: Status): { troubles: FunnelLine[]; remarks: FunnelLine[] } {
  const { lines } = status.funnel;
  return { troubles: lines.filter((l) => l.severity !== "remark"), remarks: lines.filter((l) => l.severity === "remark") };
}

export function funnelOf(status: Status): FunnelStage[] {
  const { groups } = status;
  const batches = (status.batch.batches ?? {}) as Record<string, number>;
  const complete = groupsIn(groups, COMPLETE);
  const scored = groupsIn(groups, SCORED);
  const leased = groupsIn(groups, LEASED);
  const counts: [string, number, string?][] = [
    ["calls", status.calls],
    ["episodes", Object.entries(status.episodes).reduce((n, [s, c]) => n + (s === "deleted" ? 0 : c), 0), link("episodes")],
    ["groups", complete, link("groups")],
    ["scored", scored, link("groups", "", { state: "ready" })],
    ["leased", leased],
    ["trained", groups.trained ?? 0, link("groups", "", { state: "trained" })],
    ["steps", batches.trained ?? status.steps, link("training")],
    ["live", 0, link("adapters")],
  ];
  const stages = counts.map(([name, count, href]) => ({
    name,
    count,
    href,
    losses: status.funnel.lines.filter((line) => (OF_STAGE[line.stage] ?? "trained") === name),
  }));
  const held = groups.eval ?? 0;
  if (held) {
    const text = `${held} held-out ${held === 1 ? "group measures" : "groups measure"} (split = eval): such runs never train`;
    stages[2]?.losses.push({ stage: "groups", cause: "eval", count: held, text, fix: null, severity: "remark" });
  }
  // what the gate says stands with the steps' adapters
  const gate = stages.pop();
  stages.at(-1)?.losses.push(...(gate?.losses ?? []));
  return stages;
}
