// Adapters: their lineage over time, what the gate saw of each, and the two things that a person can do.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ApiError, post } from "../api";
import { useAsk } from "../data";
import { between, number, words } from "../format";
import { step, useKeys } from "../keyboard";
import { versionOf } from "../learning";
import { actions } from "../lineage";
import { tell } from "../live";
import { useMay } from "../may";
import { Behaviour } from "../parts/behaviour";
import { Gate } from "../parts/gate";
import { LineageChart } from "../parts/lineage";
import { Replay } from "../parts/replay";
import { type Column, VirtualTable } from "../parts/table";
import { Facts, Field, Lacks, Mark, Num, Refused, Said, Time } from "../parts/ui";
import { change, link, type Place } from "../route";
import type { Action, Adapter, AdapterEffect, AdapterList, GroupPage, LearningAnswer } from "../types";

export function Adapters({ place }: { place: Place }): JSX.Element {
  const { data, error, loading } = useAsk<AdapterList>("/adapters", ["adapter", "reward", "step"]);
  const learning = useAsk<LearningAnswer>("/learning?by=adapter&each=role", ["reward"]);
  const means = (adapter: string): Means =>
    Object.fromEntries((learning.data?.points ?? []).filter((p) => p.adapter === adapter).map((p) => [p.series, p]));
  const rows = data?.adapters ?? [];
  const chosen = rows.find((a) => a.name === place.query.adapter) ?? null;
  const choose = (name: string | null): void => change(place, { adapter: name }, true);
  const move = (by: 1 | -1): void => {
    const next = step(rows, (a) => a.name, chosen?.name ?? null, by);
    if (next) choose(next.name);
  };
  useKeys({ j: () => move(1), k: () => move(-1), Escape: () => choose(null) });
  const columns: Column<Adapter>[] = [
    { name: "adapter", cell: (a) => <a href={link("adapters", "", { adapter: a.name })} tabIndex={-1}>{a.name}</a> },
    { name: "state", cell: (a) => <Mark kind={a.state}>{words(a.state)}{a.frozen ? ", frozen" : ""}{a.loaded ? ", loaded" : ""}{a.files === false ? ", files gone" : ""}</Mark> },
    { name: "step", num: true, cell: (a) => number(a.step) },
    { name: "parent", cell: (a) => a.parent ?? "" },
    ...["live", "held-out"].map((role): Column<Adapter> => ({ name: role, title: `mean reward, ${role}`, num: true, cell: (a) => mean(means(a.name)[role]) })),
    { name: "running", title: "open now", num: true, cell: (a) => number(a.episodes) },
    { name: "difference", title: "mean reward of its own runs minus the control's", num: true, cell: (a) => a.gate?.own_difference == null ? "–" : <><Num value={a.gate.own_difference} sign column /> of {number(a.gate.own_episodes ?? 0)}</> },
    { name: "why", wide: true, cell: (a) => <span title={a.reason ?? a.gate?.reason}>{a.reason ?? a.gate?.reason ?? ""}</span> },
    { name: "made", num: true, cell: (a) => <Time at={a.created} /> },
  ];
  return (
    <>
      <h1>Adapters</h1>
      <Refused error={error} />
      {Object.entries(data?.live ?? {}).map(([model, live]) => (
        <p class="small" key={model}>
          New episodes of {model} get <Mark kind="live">{live}</Mark>
          {rows.filter((a) => a.model === model && a.state === "candidate" && a.gate?.gets).map((a) => `, but ${a.gate?.gets}`)}
        </p>
      ))}
      {rows.length ? (
        <>
          <LineageChart adapters={rows} chosen={chosen?.name ?? null} onChoose={choose} />
          {chosen ? <Detail adapter={chosen} means={learning.data && means(chosen.name)} /> : null}
          <VirtualTable
            label="Adapters"
            columns={columns}
            rows={rows}
            idOf={(a) => a.name}
            chosen={chosen?.name}
            onChoose={(a) => choose(a.name)}
            busy={loading}
          />
        </>
      ) : data ? (
        <div class="empty">
          <p>
            No adapter has been made yet. <a href={link("now")}>Now</a> says what the first step waits for.
          </p>
        </div>
      ) : null}
    </>
  );
}

/** By what the runs were for: live, control, held-out. */
type Means = Record<string, LearningAnswer["points"][number]>;

function mean(point: Means[string] | undefined): string {
  return point ? `${between(point.mean, point.low, point.high)} of ${number(point.n)}` : "–";
}

function Detail({ adapter: a, means }: { adapter: Adapter; means: Means | null }): JSX.Element {
  const groups = useAsk<GroupPage>(a.batches[0] ? `/groups?batch=${encodeURIComponent(a.batches[0])}` : null, ["group"]);
  return (
    <section class="panel" aria-label={`Adapter ${a.name}`}>
      <div class="row">
        <h2>{a.name}</h2>
        <Mark kind={a.state}>{words(a.state)}</Mark>
        <Actions adapter={a} />
      </div>
      <div class="split two">
        <Facts
          facts={[
            ["made", <Time at={a.created} />],
            ["decided", a.decided === null ? null : <Time at={a.decided} />],
            ["why", a.reason],
            ["not for", Object.entries(a.kept_from ?? {}).map(([group, to]) => `${group} (its new runs get ${to})`).join(", ") || null],
            ["given by hand to", a.given?.join(", ") || null],
            ["parent", a.parent && versionOf(a.parent) ? <a href={link("adapters", "", { adapter: a.parent })}>{a.parent}</a> : a.parent],
            ...Object.entries(means ?? {}).map(([role, point]): [string, string] => [`mean reward, ${role}`, mean(point)]),
            ["mean reward", means && !Object.keys(means).length ? "no rewards yet" : null],
            ["batches", a.batches.map((b) => <a key={b} href={link("training", "", { batch: b })}>{b} </a>)],
            ["trained on", groups.data?.groups.map((g) => <a key={g.id} href={link("group", g.id)}>{g.task ?? g.id} </a>)],
            ["its episodes", <a href={link("episodes", "", { adapter: a.name })}>show them</a>],
            ["files", a.files === false ? <Mark kind="bad">gone from {a.path}</Mark> : a.path],
          ]}
        />
        <div>
          <Gate adapter={a} />
        </div>
      </div>
      <Behaviour key={a.name} adapter={a} />
      <Replay adapter={a} />
    </section>
  );
}

const VERBS: Record<Action, string> = { promote: "Promote", demote: "Demote", freeze: "Freeze", unfreeze: "Unfreeze" };

/** What a person can do: the page says what will happen, and the record keeps the reason. */
function Actions({ adapter }: { adapter: Adapter }): JSX.Element {
  const { can, whyNot } = actions(adapter);
  const decides = useMay();
  const [doing, setDoing] = useState<Action | null>(null);
  const [reason, setReason] = useState("");
  const [said, setSaid] = useState("");
  const [error, setError] = useState<ApiError | null>(null);
  const [sent, setSent] = useState(false);
  const path = `/adapters/${encodeURIComponent(adapter.name)}`;
  // once it is sent, what it would do is no question any more
  const effect = useAsk<AdapterEffect>(doing && !sent ? `${path}/effect?action=${doing}` : null, ["adapter"]);
  const act = async (event: Event): Promise<void> => {
    event.preventDefault();
    setError(null);
    setSent(true);
    try {
      const after = await post<Adapter>(`${path}/${doing}`, { reason: reason || "by hand, on the page" });
      setSaid(`${after.name} is ${words(after.state)}${after.frozen ? ", frozen" : ""}`);
      setDoing(null);
      tell("adapter");
    } catch (e) {
      setError(e instanceof ApiError ? e : new ApiError(0, (e as Error).message));
    } finally {
      setSent(false);
    }
  };
  if (!decides) return can.length ? <Lacks scope="admin" to="promote or demote" /> : <></>;
  if (doing)
    return (
      <form class="row" onSubmit={(e) => void act(e)}>
        <ul class="small" id="effect" aria-label="What will happen">
          {effect.data?.action === doing ? effect.data.says.map((one) => <li key={one}><Said text={one} /></li>) : null}
        </ul>
        <Field label="reason">
          <input name="reason" value={reason} onInput={(e) => setReason(e.currentTarget.value)} />
        </Field>
        <button class="primary" disabled={effect.data?.action !== doing}>
          {VERBS[doing]} {adapter.name}
        </button>
        <button type="button" onClick={() => setDoing(null)}>
          Cancel
        </button>
        <Refused error={error ?? effect.error} />
      </form>
    );
  return (
    <>
      {can.map((action) => (
        <button type="button" key={action} onClick={() => setDoing(action)}>
          {VERBS[action]}
        </button>
      ))}
      {whyNot ? <span class="small soft">It cannot be promoted: {whyNot}.</span> : null}
      <span role="status" id="said">
        {said}
      </span>
    </>
  );
}
