// Now: is it healthy, where do episodes stay, does it get better, what happens next and when.

import type { JSX } from "preact";
import { useAsk } from "../data";
import { duration, number, plural } from "../format";
import { causesOf, funnelOf, type FunnelStage } from "../funnel";
import { taskOf } from "../names";
import { Card, Copy, Outcome, Said, Time } from "../parts/ui";
import { Causes, SeverityMark } from "../parts/causes";
import { LearningCurve } from "../parts/curve";
import { link } from "../route";
import type { AdapterList, EpisodePage, FunnelLine, Status } from "../types";

export function Now({ status }: { status: Status | null }): JSX.Element {
  if (!status) return <p class="soft">Asking the proxy…</p>;
  if (!status.calls && !Object.values(status.episodes).some(Boolean)) return <FirstCall status={status} />;
  return (
    <>
      <h1>Now</h1>
      <Causes status={status} />
      {Object.entries(status.headlines).map(([model, text]) => (
        <p class="headline" key={model}>
          {Object.keys(status.headlines).length > 1 ? `${model}: ` : ""}
          {text}
        </p>
      ))}
      <Health status={status} />
      <div class="split two">
        <section class="panel" aria-labelledby="h-funnel">
          <h2 id="h-funnel">From calls to learning</h2>
          <Funnel status={status} />
        </section>
        <div>
          <section class="panel" aria-labelledby="h-next">
            <h2 id="h-next">What happens next</h2>
            <Next status={status} />
          </section>
          <section class="panel" aria-labelledby="h-curve">
            <h2 id="h-curve">Reward over adapters</h2>
            <LearningCurve />
          </section>
          <Latest />
        </div>
      </div>
    </>
  );
}

/** The one line to paste. It turns into the first call when that arrives, for the status is asked again then. */
function FirstCall({ status }: { status: Status }): JSX.Element {
  const line = `export OPENAI_BASE_URL=${location.origin}/v1`;
  const blocking = status.funnel.lines.filter((l) => l.severity === "blocks" && l.stage !== "calls");
  const textOnly = blocking.some((l) => l.cause === "no_token_ids");
  return (
    <div class="empty">
      <h1>No call has come yet</h1>
      <p>Point your agent at this proxy. Nothing else in it changes:</p>
      <pre>{line}</pre>
      <Copy text={line} />
      <p class="soft">
        This page shows the first call as soon as it arrives.
        {textOnly ? null : (
          <>
            {" "}
            To learn, an agent also needs tasks (<code>x-slipstream-task</code>) and rewards, or a judge.
          </>
        )}
      </p>
      {blocking.map((l) => (
        <p key={l.cause} class="problem">
          <Said text={l.text} />
          {l.fix ? <> → <Said text={l.fix} /></> : null}
        </p>
      ))}
    </div>
  );
}

function Health({ status }: { status: Status }): JSX.Element {
  const down = status.engines.filter((e) => !e.ok);
  const sum = Object.entries(status.episodes).reduce((n, [state, count]) => n + (state === "deleted" ? 0 : count), 0);
  return (
    <div class="cards">
      {Object.entries(status.models).map(([model, live]) => (
        <Card key={model} name={`${model} serves`} value={<a href={link("adapters", "", { adapter: live })}>{live}</a>} note={status.canaries?.[model]} />
      ))}
      <Card
        name="engines"
        value={`${status.engines.length - down.length} of ${status.engines.length} up`}
        note={down[0]?.error ?? undefined}
        kind={down.length ? "bad" : "good"}
      />
      <Card name="calls" value={number(status.calls)} note={plural(sum, "episode")} />
      <Card
        name="steps"
        value={number(status.steps)}
        note={status.last_step ? <>last adapter <Time at={status.last_step} /></> : status.steps ? "no adapter came of them" : "none yet"}
      />
      <Card
        name="calls not recorded"
        value={number(status.capture_lost)}
        note={status.capture_lost ? "served, but not stored: see the proxy's log" : "nothing was lost"}
        kind={status.capture_lost ? "bad" : undefined}
      />
      <Card
        name="store is behind by"
        value={duration(status.ingest_lag_seconds)}
        kind={status.ingest_lag_seconds > 5 ? "bad" : undefined}
      />
      {status.sidecars
        .filter((s) => s.state !== "ended")
        .map((s) => (
          <Card
            key={s.name}
            name={s.name}
            value={s.state}
            note={s.state === "running" ? <>since <Time at={s.since} />{s.reason ? `; before, it ${s.reason}` : ""}</> : (s.reason ?? undefined)}
            kind={s.state === "running" ? "good" : "bad"}
          />
        ))}
    </div>
  );
}

function Funnel({ status }: { status: Status }): JSX.Element {
  const stages = funnelOf(status);
  const most = Math.max(1, ...stages.slice(1).map((s) => s.count));
  return (
    <ol class="funnel">
      {stages.map((stage) => (
        <li key={stage.name}>
          <span>{stage.href ? <a href={stage.href}>{stage.name}</a> : stage.name}</span>
          <span class="num">{number(stage.count)}</span>
          <span>
            {stage.name === "calls" ? null : (
              <span class="bar" style={{ display: "block", width: `${(stage.count / most) * 100}%` }} />
            )}
          </span>
          <Losses stage={stage} said={status.funnel.lines} />
        </li>
      ))}
    </ol>
  );
}

/** What keeps runs at a stage. The causes stand at the top of the page already: here is how many of them are this stage's, but for remarks. */
function Losses({ stage, said }: { stage: FunnelStage; said: FunnelLine[] }): JSX.Element | null {
  const above = stage.losses.filter((loss) => said.includes(loss));
  const marks = (["blocks", "slows"] as const)
    .map((severity) => ({ severity, count: above.filter((loss) => loss.severity === severity).length }))
    .filter(({ count }) => count);
  const own = stage.losses.filter((loss) => !said.includes(loss));
  if (!marks.length && !own.length) return null;
  return (
    <ul class="losses">
      {marks.length ? (
        <li>
          {marks.map(({ severity, count }) => (
            <span key={severity}><SeverityMark severity={severity} count={count} /> </span>
          ))}
          <span class="soft">(at the top)</span>
        </li>
      ) : null}
      {own.map((loss) => (
        <li key={loss.cause}><Said text={loss.text} /></li>
      ))}
    </ul>
  );
}

function Next({ status }: { status: Status }): JSX.Element {
  const { data } = useAsk<AdapterList>("/adapters", ["adapter", "reward"]);
  const other = causesOf(status).remarks.filter((l) => ["ready", "trainer", "step", "gate"].includes(l.stage));
  // where the funnel speaks of the gate, it has said so already
  const trial = other.some((l) => l.stage === "gate") ? undefined : data?.adapters.find((a) => a.state === "candidate");
  const behind = status.judging.seconds_behind;
  return (
    <>
      {other.length || trial || behind ? null : <p>The next step comes as groups fill.</p>}
      <ul class="small">
        {other.map((l) => (
          <li key={l.stage + l.cause}>
            <Said text={l.text} />
            {l.fix ? <span class="soft"> → <Said text={l.fix} /></span> : null}
          </li>
        ))}
        {behind !== null && behind > 0 ? <li>The judge catches up in about {duration(behind)}.</li> : null}
        {trial?.gate?.episodes_left ? (
          <li>
            <a href={link("adapters", "", { adapter: trial.name })}>{trial.name}</a> is on trial: about{" "}
            {plural(trial.gate.episodes_left, "more new episode")}, of all versions, until a verdict.
          </li>
        ) : null}
      </ul>
    </>
  );
}

function Latest(): JSX.Element {
  const { data } = useAsk<EpisodePage>("/episodes?limit=5", ["call", "episode", "reward"]);
  const first = data?.episodes[0];
  return (
    <section class="panel" aria-labelledby="h-latest">
      <h2 id="h-latest">Latest episodes</h2>
      {first ? (
        <ul class="plain">
          {(data?.episodes ?? []).map((e) => (
            <li key={`${e.key}/${e.id}`}>
              <a href={link("episode", e.id, { key: e.key })}>{e.id}</a> <Time at={e.started} /> {e.task ? <span class="tag">{taskOf(e)}</span> : null}{" "}
              {plural(e.calls, "call")}, <Outcome of={e} />
              {e.reward === null ? "" : `, reward ${number(e.reward)}`}
            </li>
          ))}
        </ul>
      ) : null}
    </section>
  );
}
