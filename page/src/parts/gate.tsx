// The gate's evidence of one adapter: the difference from what it is compared with, and how close a verdict is.

import type { JSX } from "preact";
import { useAsk } from "../data";
import { number, percent, plural, signed } from "../format";
import { clamp } from "../scales";
import type { Adapter, GateEvidence, GateGroup, GateGuard, GateReport } from "../types";
import { Chart } from "./chart";
import { Mark, Said } from "./ui";

export function Gate({ adapter }: { adapter: Adapter }): JSX.Element {
  const gate = adapter.gate;
  if (!gate) return <p class="soft small">The gate has not looked at it.</p>;
  const gets = gate.gets ? <p class="small">{gate.gets}</p> : null;
  if (gate.decision === "undecided" && gate.difference === null && !gate.trial_episodes)
    return (
      <>
        {gets}
        <p class="soft small"><Said text={gate.reason} /></p>
        <Moved name={adapter.name} trial={0} />
      </>
    );
  return (
    <>
      {gets}
      <p class="small">
        <Mark kind={gate.decision === "accept" ? "good" : gate.decision === "rollback" ? "bad" : "candidate"}>
          {gate.decision === "undecided" ? "no verdict yet" : gate.decision === "accept" ? "accepted" : "taken back"}
        </Mark>
        : <Said text={gate.reason} />
        {gate.fix ? <span class="soft"> → <Said text={gate.fix.replace("VERSION", adapter.name)} /></span> : null}
      </p>
      {gate.difference === null ? null : <Interval gate={gate} />}
      <Evidence gate={gate} />
      {gate.own_episodes === undefined ? null : (
        <p class="small">
          {plural(gate.own_episodes, "finished run")} of {adapter.name} itself
          {gate.own_difference == null ? "" : `: ${signed(gate.own_difference)} against ${gate.control}`}
        </p>
      )}
      <p class="small">
        {plural(gate.trial_episodes, "episode")} on trial, {plural(gate.control_episodes, "episode")} of {gate.control || "the control"};{" "}
        {percent(gate.control_share)} of new episodes go to the control
        {gate.episodes_left === null || adapter.state !== "candidate" ? "" : `; about ${plural(gate.episodes_left, "more new episode")}, of all versions, until a verdict`}
      </p>
      <Groups groups={gate.groups ?? []} threshold={gate.threshold} />
      <Guards guards={gate.guards ?? []} control={gate.control} threshold={gate.threshold} />
      <Moved name={adapter.name} trial={gate.trial_episodes} />
    </>
  );
}

function Groups({ groups, threshold }: { groups: GateGroup[]; threshold: number }): JSX.Element | null {
  if (!groups.length) return null;
  return (
    <>
      <h3>By group</h3>
      <div class="scroll" tabIndex={0} role="region" aria-label="Groups of runs">
        <table>
          <thead>
            <tr>
              <th scope="col">group</th>
              <th scope="col" class="num">difference</th>
              <th scope="col" class="num">runs on trial</th>
              <th scope="col" class="num">runs of the control</th>
              <th scope="col" class="num">evidence, of {number(threshold)}</th>
            </tr>
          </thead>
          <tbody>
            {groups.map((g) => (
              <tr key={g.name}>
                <td>{g.name}</td>
                <td class="num">{g.difference === null ? "–" : signed(g.difference)}</td>
                <td class="num">{number(g.trial_episodes)}</td>
                <td class="num">{number(g.control_episodes)}</td>
                <td class="num">{number(g.evidence)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

/** Only those that some run has: a guard without a figure says nothing. */
function Guards({ guards, control, threshold }: { guards: GateGuard[]; control: string; threshold: number }): JSX.Element | null {
  const known = guards.filter((g) => g.trial !== null && g.control !== null);
  if (!known.length) return null;
  return (
    <>
      <h3>Guards</h3>
      <div class="scroll" tabIndex={0} role="region" aria-label="Guards">
        <table>
          <thead>
            <tr>
              <th scope="col">measure</th>
              <th scope="col">bad is</th>
              <th scope="col" class="num">on trial</th>
              <th scope="col" class="num">{control || "the control"}</th>
              <th scope="col" class="num">runs</th>
              <th scope="col" class="num">evidence, of {number(threshold)}</th>
            </tr>
          </thead>
          <tbody>
            {known.map((g) => (
              <tr key={g.name}>
                <td>{g.evidence >= threshold ? <Mark kind="bad">{g.name}</Mark> : g.name}</td>
                <td>{g.bad}</td>
                <td class="num">{number(g.trial)}</td>
                <td class="num">{number(g.control)}</td>
                <td class="num">{number(g.trial_episodes)}</td>
                <td class="num">{number(g.evidence)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

/** How the evidence came about, from the first finished episode on trial; it grows while somebody looks. */
function Moved({ name, trial }: { name: string; trial: number }): JSX.Element | null {
  const { data, loading } = useAsk<GateEvidence>(`/adapters/${encodeURIComponent(name)}/evidence`, ["adapter", "reward"]);
  const known = data?.adapter === name;
  if (!known && loading && trial > 1) return <div class="charts-to-come" />;
  const readings = known ? data.readings : [];
  if (readings.length < 2 || !data) return null;
  const xs = readings.map((r) => r.at);
  // where the control is the best there has been, both are the same line
  const slide = readings.some((r) => r.drift_difference !== null && r.drift_difference !== r.difference);
  return (
    <>
      <h3>How the difference moved</h3>
      <Chart
        label={`The gate's difference in mean reward for ${name}, over time`}
        time
        xs={xs}
        height={150}
        include={[0]}
        series={[
          { name: "difference", colour: "live", ys: readings.map((r) => r.difference) },
          { name: "lower bound", colour: "control", dashed: true, ys: readings.map((r) => r.lower) },
          { name: "upper bound", colour: "control", dashed: true, ys: readings.map((r) => r.upper) },
          ...(slide ? [{ name: "against the best", colour: "heldout", ys: readings.map((r) => r.drift_difference) }] : []),
        ]}
      />
      <h3>How close it was to being taken back</h3>
      <Chart
        label={`Evidence that ${name} is worse, of what takes it back, over time`}
        time
        xs={xs}
        height={120}
        include={[0, 1]}
        series={[{ name: "of the evidence that takes it back", colour: "refused", ys: readings.map((r) => wayTo(r.evidence, data.threshold)) }]}
      />
    </>
  );
}

/** Of the way to the threshold, 0 to 1: evidence multiplies, so the way is logarithmic. */
export function wayTo(evidence: number, threshold: number): number {
  return threshold > 1 ? clamp(Math.log(Math.max(1, evidence)) / Math.log(threshold), 0, 1) : 0;
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
  const share = wayTo(gate.evidence, gate.threshold);
  return (
    <p class="small">
      <meter aria-label="Evidence that it is worse" min={0} max={1} value={share} style={{ width: "12rem" }} /> evidence that it is worse:{" "}
      {number(gate.evidence)}; at {number(gate.threshold)} it is taken back
    </p>
  );
}
