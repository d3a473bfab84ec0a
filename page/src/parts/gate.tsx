// The gate's evidence of one adapter: the difference from what it is compared with, and how close a verdict is.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { number, percent, plural, signed } from "../format";
import { clamp } from "../scales";
import type { Adapter, GateReport } from "../types";
import { Chart } from "./chart";
import { Mark } from "./ui";

interface Reading {
  at: number;
  difference: number | null;
  lower: number | null;
  upper: number | null;
  evidence: number;
}

const KEPT = 500;
const readings = new Map<string, Reading[]>();

/** What the gate said since this page was opened, of each adapter. */
export function note(adapters: Adapter[], at: number): void {
  for (const a of adapters) {
    if (!a.gate) continue;
    const { difference, lower, upper, evidence } = a.gate;
    const before = readings.get(a.name) ?? [];
    const last = before.at(-1);
    if (last && last.difference === difference && last.lower === lower && last.upper === upper && last.evidence === evidence) continue;
    readings.set(a.name, [...before, { at, difference, lower, upper, evidence }].slice(-KEPT));
  }
}

export function Gate({ adapter }: { adapter: Adapter }): JSX.Element {
  const gate = adapter.gate;
  const [, redraw] = useState(0);
  useEffect(() => redraw((n) => n + 1), [gate]);
  if (!gate) return <p class="soft small">The gate has not looked at it.</p>;
  const history = readings.get(adapter.name) ?? [];
  return (
    <>
      <p class="small">
        <Mark kind={gate.decision === "accept" ? "good" : gate.decision === "rollback" ? "bad" : "candidate"}>
          {gate.decision === "undecided" ? "no verdict yet" : gate.decision === "accept" ? "accepted" : "taken back"}
        </Mark>{" "}
        {gate.reason}
        {gate.fix ? <span class="soft"> → {gate.fix}</span> : null}
      </p>
      {gate.difference === null ? null : <Interval gate={gate} />}
      <Evidence gate={gate} />
      <p class="small">
        {plural(gate.trial_episodes, "episode")} on trial, {plural(gate.control_episodes, "episode")} of {gate.control || "the control"};{" "}
        {percent(gate.control_share)} of new episodes go to the control
        {gate.episodes_left === null ? "" : `; about ${plural(gate.episodes_left, "more episode")} until a verdict`}
      </p>
      {history.length > 1 ? (
        <Chart
          label="The gate's difference since this page was opened"
          time
          xs={history.map((r) => r.at)}
          height={150}
          include={[0]}
          series={[
            { name: "difference", colour: "live", ys: history.map((r) => r.difference) },
            { name: "lower bound", colour: "control", dashed: true, ys: history.map((r) => r.lower) },
            { name: "upper bound", colour: "control", dashed: true, ys: history.map((r) => r.upper) },
          ]}
        />
      ) : null}
    </>
  );
}

/** The difference in mean reward with its interval, around no difference. */
function Interval({ gate }: { gate: GateReport }): JSX.Element {
  const known = [gate.difference, gate.lower, gate.upper].filter((v): v is number => v !== null);
  const most = Math.max(0.05, ...known.map(Math.abs)) * 1.1;
  const x = (v: number): number => 200 + clamp(v / most, -1, 1) * 190;
  const says = `Difference in mean reward ${signed(gate.difference)}${gate.lower === null ? "" : `, between ${signed(gate.lower)} and ${signed(gate.upper)}`}`;
  return (
    <figure style={{ margin: 0, maxWidth: "32rem" }} class="lineage">
      <svg viewBox="0 0 400 54" role="img" aria-label={says}>
        <line class="axis" x1={10} x2={390} y1={24} y2={24} />
        <line x1={200} x2={200} y1={6} y2={40} stroke="var(--line-strong)" stroke-dasharray="3 3" />
        {gate.lower === null || gate.upper === null ? null : (
          <line x1={x(gate.lower)} x2={x(gate.upper)} y1={24} y2={24} stroke="var(--live)" stroke-width={6} />
        )}
        <circle cx={x(gate.difference ?? 0)} cy={24} r={6} fill="var(--live)" />
        <text x={10} y={50}>{signed(-most, 2)}</text>
        <text x={200} y={50} text-anchor="middle">no difference</text>
        <text x={390} y={50} text-anchor="end">{signed(most, 2)}</text>
      </svg>
      <figcaption class="small">{says}</figcaption>
    </figure>
  );
}

/** On a logarithmic scale from none (1) to the threshold, where it is taken back. */
function Evidence({ gate }: { gate: GateReport }): JSX.Element {
  const share = gate.threshold > 1 ? clamp(Math.log(Math.max(1, gate.evidence)) / Math.log(gate.threshold), 0, 1) : 0;
  return (
    <p class="small">
      <meter aria-label="Evidence that it is worse" min={0} max={1} value={share} style={{ width: "12rem" }} /> evidence that it is worse:{" "}
      {number(gate.evidence)}; at {number(gate.threshold)} it is taken back
    </p>
  );
}
