// One group: its runs side by side, what was said of them, what was trained on, and the difference of two of them.

import type { JSX } from "preact";
import { useAsk } from "../data";
import { duration, number, plural, signed } from "../format";
import { useKeys } from "../keyboard";
import { Difference } from "../parts/difference";
import { Long, Num, Refused, Time } from "../parts/ui";
import { change, link, type Place } from "../route";
import type { GroupDetail, GroupRun, RunJudgement } from "../types";
import { GroupState } from "./groups";

const idOf = (run: GroupRun): string => `${run.episode.key}/${run.episode.id}`;

export function Advantage({ value, most }: { value: number | null; most: number }): JSX.Element {
  if (value === null) return <span class="soft">none yet</span>;
  const width = `${Math.min(50, (Math.abs(value) / (most || 1)) * 50)}%`;
  return (
    <>
      <span class="advantage" aria-hidden="true">
        <i class={value < 0 ? "minus" : "plus"} style={{ width }} />
      </span>{" "}
      <span class="num">{signed(value)}</span>
    </>
  );
}

export function Group({ place }: { place: Place }): JSX.Element {
  const { data, error } = useAsk<GroupDetail>(`/groups/${encodeURIComponent(place.id)}`, ["group", "reward", "step"]);
  useKeys({ Escape: () => history.back() });
  if (error)
    return (
      <>
        <h1>Group {place.id}</h1>
        <Refused error={error} />
        <a href={link("groups")}>All groups</a>
      </>
    );
  if (!data) return <p class="soft">Reading {place.id}…</p>;
  const most = Math.max(...data.runs.map((r) => Math.abs(r.advantage ?? 0)), 0);
  return (
    <>
      <h1>Group {data.id}</h1>
      <div class="row about">
        {data.task ? <span>task <a href={link("groups", "", { task: data.task })}>{data.task}</a></span> : null}
        <GroupState group={data} />
        <span>{plural(data.runs.length, "run")}</span>
        <span>
          rewards from {number(data.low)} to {number(data.high)}, mean {number(data.mean)}
        </span>
        <span>began <Time at={data.created} /></span>
      </div>
      {data.batches.map((b) => (
        <p class="small" key={b.id}>
          batch <a href={link("training", "", { batch: b.id })}>{b.id}</a> {b.state}
          {b.step === null ? null : <>, step {b.step}</>}
          {b.adapter ? <> → <a href={link("adapters", "", { adapter: b.adapter })}>{b.adapter}</a></> : null}
          {b.reason ? <>: {b.reason}</> : null} <Time at={b.created} />
        </p>
      ))}
      <section class="runs" aria-label="Runs" tabIndex={0}>
        {data.runs.map((run) => (
          <Run key={idOf(run)} run={run} most={most} />
        ))}
      </section>
      {data.runs.length > 1 ? <Choice place={place} runs={data.runs} /> : null}
    </>
  );
}

function Run({ run, most }: { run: GroupRun; most: number }): JSX.Element {
  const e = run.episode;
  return (
    <article aria-label={`Run ${e.id}`}>
      <h2 style={{ marginTop: 0 }}>
        <a href={link("episode", e.id, { key: e.key })}>{e.id}</a>
      </h2>
      <dl class="facts">
        <dt>reward</dt>
        <dd>
          <strong>{number(e.reward)}</strong>
          {run.trained_reward !== null && run.trained_reward !== e.reward ? ` (trained with ${number(run.trained_reward)})` : ""}
        </dd>
        <dt>advantage</dt>
        <dd><Advantage value={run.advantage} most={most} /></dd>
        <dt>adapter</dt>
        <dd>{e.adapter ? <a href={link("adapters", "", { adapter: e.adapter })}>{e.adapter}</a> : "–"}</dd>
        <dt>calls</dt>
        <dd>{number(e.calls)}, {number(e.completion_tokens)} tokens sampled</dd>
        <dt>took</dt>
        <dd>{e.ended === null ? "open" : duration(e.ended - e.started)}</dd>
      </dl>
      {run.judgements.map((j) => (
        <Judgement key={`${j.name}${j.at}${j.source}`} said={j} />
      ))}
      {run.rewards
        .filter((r) => !run.judgements.some((j) => j.name === r.name && j.source === r.source))
        .map((r) => (
          <p class="small" key={`${r.name}${r.at}`}>
            {r.name} <Num value={r.value} /> by {r.source}
            {r.reason ? <>: {r.reason}</> : null}
          </p>
        ))}
    </article>
  );
}

function Judgement({ said }: { said: RunJudgement }): JSX.Element {
  return (
    <div class="message">
      <div class="role">
        <strong>{said.source}</strong>
        <span>
          {said.name} {number(said.value)}
        </span>
        {said.votes.length > 1 ? <span>votes {said.votes.map((v) => number(v)).join(", ")}</span> : null}
        <Time at={said.at} />
      </div>
      {said.reason ? <Long text={said.reason} limit={1200} /> : <span class="soft small">no reason given</span>}
    </div>
  );
}

function Choice({ place, runs }: { place: Place; runs: GroupRun[] }): JSX.Element {
  const sorted = [...runs].sort((a, b) => (b.episode.reward ?? 0) - (a.episode.reward ?? 0));
  const find = (id: string | undefined): GroupRun | undefined => runs.find((r) => idOf(r) === id);
  const left = find(place.query.left) ?? (sorted.at(-1) as GroupRun);
  const right = find(place.query.right) ?? (sorted[0] as GroupRun);
  const choice = (name: string, run: GroupRun): JSX.Element => (
    <select aria-label={`${name} run`} value={idOf(run)} onChange={(e) => change(place, { [name]: e.currentTarget.value }, true)}>
      {runs.map((r) => (
        <option key={idOf(r)} value={idOf(r)}>
          {r.episode.id} ({number(r.episode.reward)})
        </option>
      ))}
    </select>
  );
  return (
    <section class="panel" aria-labelledby="h-diff">
      <h2 id="h-diff">Difference of two runs</h2>
      <div class="row">
        {choice("left", left)} and {choice("right", right)}
      </div>
      <Difference left={left.episode} right={right.episode} />
    </section>
  );
}
