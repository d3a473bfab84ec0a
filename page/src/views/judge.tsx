// The judge: its queue, how far it agrees with others and with itself, and what it costs.

import type { JSX } from "preact";
import { duration, fixed, number, percent, plural } from "../format";
import { Card, Facts, Mark, Said, Time } from "../parts/ui";
import { link } from "../route";
import type { Agreement, JudgeCopy, Status } from "../types";

function agreement(a: Agreement): { value: string; note: string } {
  if (!a.pairs) return { value: "–", note: "no episode has both yet" };
  const over = `over ${plural(a.pairs, "episode")}`;
  if (a.value === null) return { value: "–", note: `${over}: too few, or one side scored all the same` };
  if (a.pairs < 4) return { value: number(a.value), note: `${over}: too few to say how sure that is` };
  return { value: number(a.value), note: `${over}; 95 % interval: ${spanOf(a.value, a.pairs).map((v) => fixed(v, 2)).join(" to ")}` };
}

/** Between which a correlation over n episodes lies (Fisher's z; at ±1 by one pair that differs). */
export function spanOf(r: number, n: number): [number, number] {
  const z = Math.atanh(Math.max(-1 + 1 / n, Math.min(1 - 1 / n, r)));
  const half = 1.96 * Math.sqrt(1.06 / (n - 3));
  return [Math.min(r, Math.tanh(z - half)), Math.max(r, Math.tanh(z + half))];
}

export function Judge({ status }: { status: Status | null }): JSX.Element {
  if (!status) return <p class="soft">Asking the proxy…</p>;
  const { judging } = status;
  const lines = status.funnel.lines.filter((l) => l.stage === "judge" || l.stage === "reward");
  const dollars = judging.judges.reduce((n, j) => n + j.spent.dollars, 0);
  const spread = judging.judges.filter((j) => j.spread !== null);
  return (
    <>
      <h1>Judge</h1>
      {judging.judges.length ? null : (
        <div class="empty">
          <p>
            No judge has reported within the last minute. Rewards may come from your agent, from people
            (<a href={link("label")}>Label</a>), or from a judge: set <code>judge.model</code>, or start <code>slipstream judge</code>.
          </p>
        </div>
      )}
      <h2>Queue</h2>
      <div class="cards">
        <Card name="groups to judge" value={number(judging.backlog.groups)} note={<>no judge scored them; <a href={link("groups", "", { state: "waiting_reward" })}>those that wait for rewards</a></>} />
        <Card name="the oldest waits for" value={duration(judging.backlog.oldest_seconds)} />
        <Card name="behind by" value={duration(judging.seconds_behind)} note="queue over the judges' rate" />
        <Card name="parked" value={number(judging.backlog.parked)} note="it failed too often on these" kind={judging.backlog.parked ? "bad" : undefined} />
        <Card name="rate" value={number(judging.judges.reduce((n, j) => n + j.groups_per_minute, 0))} note="groups a minute" />
      </div>
      <ul class="small">
        {lines.map((l) => (
          <li key={l.stage + l.cause}>
            {l.severity === "blocks" ? <strong><Said text={l.text} /></strong> : <Said text={l.text} />}
            {l.fix ? <span class="soft"> → <Said text={l.fix} /></span> : null}
          </li>
        ))}
      </ul>
      <h2>Agreement</h2>
      <p class="small soft">A correlation: 1 is the same order, 0 none, −1 the opposite.</p>
      <div class="cards">
        <Card name="with agents' own rewards" {...agreement(judging.agent)} />
        <Card name="with people" {...agreement(judging.human)} />
        {judging.judges.map((j) => (
          <Card key={j.worker} name={`${j.worker} with its audit model`} {...agreement(j.audit)} />
        ))}
        <Card
          name="spread of votes"
          value={number(spread.length ? spread.reduce((n, j) => n + (j.spread ?? 0), 0) / spread.length : null)}
          note="mean standard deviation of an episode's votes"
        />
      </div>
      <h2>Cost today</h2>
      <p class="small">
        {judging.judges.length ? null : "No judge reports now. What its scores have cost: "}
        <a href={link("cost")}>By version, task or tag</a>
      </p>
      {judging.judges.length ? (
        <div class="cards">
          <Card name="spent" value={`$${number(dollars)}`} />
          <Card name="tokens" value={number(judging.judges.reduce((n, j) => n + j.spent.tokens, 0))} />
          <Card name="calls" value={number(judging.judges.reduce((n, j) => n + j.spent.calls, 0))} />
        </div>
      ) : null}
      {judging.judges.length ? <h2>Copies</h2> : null}
      {judging.judges.map((j) => (
        <Copy key={j.worker} judge={j} />
      ))}
    </>
  );
}

function Copy({ judge: j }: { judge: JudgeCopy }): JSX.Element {
  const limit = (spent: number, of: number | null): string => (of ? `${number(spent)} of ${number(of)} (${percent(spent / of)})` : number(spent));
  return (
    <section class="panel" aria-label={`Judge ${j.worker}`}>
      <h3>{j.worker}</h3>
      <Facts
        facts={[
          ["judges with", j.model ?? j.function],
          ["writes", j.names.join(", ")],
          ["working on", `${number(j.working)} of ${plural(j.concurrency, "group")} at once`],
          ["a group takes", duration(j.seconds_per_group)],
          ["a group costs", j.cost_per_group === null ? "no price is known" : `$${number(j.cost_per_group)}`],
          ["scored, failed, postponed, lost", [j.scored, j.failed, j.postponed, j.lost].map((n) => number(n)).join(", ")],
          ["tokens today", limit(j.spent.tokens, j.spent.tokens_limit)],
          ["dollars today", limit(j.spent.dollars, j.spent.dollars_limit)],
          ["waits for", j.waits_for ? <Mark kind="bad">{j.waits_for} until <Time at={j.waits_until} /></Mark> : null],
          ["last error", j.last_error],
          ["reported", <Time at={j.at} />],
        ]}
      />
    </section>
  );
}
