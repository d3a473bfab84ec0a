// Adapters: their lineage over time, what the gate saw of each, and the two things that a person can do.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ApiError, post } from "../api";
import { useAsk } from "../data";
import { fixed, number, plural, words } from "../format";
import { step, useKeys } from "../keyboard";
import { versionOf } from "../learning";
import { actions } from "../lineage";
import { tell } from "../live";
import { useMay } from "../may";
import { Gate } from "../parts/gate";
import { LineageChart } from "../parts/lineage";
import { type Column, VirtualTable } from "../parts/table";
import { Facts, Field, Lacks, Mark, Num, Refused, Time } from "../parts/ui";
import { change, link, type Place } from "../route";
import type { Adapter, AdapterList, GroupPage, LearningAnswer } from "../types";

export function Adapters({ place }: { place: Place }): JSX.Element {
  const { data, error, loading } = useAsk<AdapterList>("/adapters", ["adapter", "reward", "step"]);
  const learning = useAsk<LearningAnswer>("/learning?by=adapter&split=train", ["reward"]);
  const means = new Map((learning.data?.points ?? []).map((p) => [p.adapter, p]));
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
    { name: "state", cell: (a) => <Mark kind={a.state}>{words(a.state)}{a.loaded ? ", loaded" : ""}{a.files === false ? ", files gone" : ""}</Mark> },
    { name: "step", num: true, cell: (a) => number(a.step) },
    { name: "parent", cell: (a) => a.parent ?? "" },
    { name: "mean", title: "mean reward ± SE", num: true, cell: (a) => mean(means.get(a.name)) },
    { name: "n", title: "rewarded", num: true, cell: (a) => number(means.get(a.name)?.n ?? 0) },
    { name: "running", title: "open now", num: true, cell: (a) => number(a.episodes) },
    { name: "difference", num: true, cell: (a) => <Num value={a.gate?.difference} sign column /> },
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
        </p>
      ))}
      {rows.length ? (
        <>
          <LineageChart adapters={rows} chosen={chosen?.name ?? null} onChoose={choose} />
          {chosen ? <Detail adapter={chosen} point={means.get(chosen.name)} /> : null}
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

function mean(point: LearningAnswer["points"][number] | undefined): string {
  if (!point) return "–";
  return `${fixed(point.mean)}${point.se === null ? "" : ` ± ${fixed(point.se)}`}`;
}

function Detail({ adapter: a, point }: { adapter: Adapter; point: LearningAnswer["points"][number] | undefined }): JSX.Element {
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
            ["parent", a.parent && versionOf(a.parent) ? <a href={link("adapters", "", { adapter: a.parent })}>{a.parent}</a> : a.parent],
            ["mean reward", point ? `${mean(point)} over ${plural(point.n, "episode")}` : "no rewards yet"],
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
    </section>
  );
}

/** Promote and roll back, each with a reason that the record keeps. */
function Actions({ adapter }: { adapter: Adapter }): JSX.Element {
  const can = actions(adapter);
  const decides = useMay();
  const [doing, setDoing] = useState<"promote" | "rollback" | null>(null);
  const [reason, setReason] = useState("");
  const [said, setSaid] = useState("");
  const [error, setError] = useState<ApiError | null>(null);
  const act = async (event: Event): Promise<void> => {
    event.preventDefault();
    setError(null);
    try {
      const path = `/adapters/${encodeURIComponent(adapter.name)}/${doing}`;
      const after = await post<Adapter>(path, { reason: reason || "by hand, on the page" });
      setSaid(`${after.name} is ${words(after.state)}`);
      setDoing(null);
      tell("adapter");
    } catch (e) {
      setError(e instanceof ApiError ? e : new ApiError(0, (e as Error).message));
    }
  };
  if (!decides) return can.promote || can.rollback ? <Lacks scope="admin" to="promote or roll back" /> : <></>;
  if (doing)
    return (
      <form class="row" onSubmit={(e) => void act(e)}>
        <Field label="reason">
          <input name="reason" value={reason} onInput={(e) => setReason(e.currentTarget.value)} />
        </Field>
        <button class="primary">
          {doing === "promote" ? "Make it live" : "Take it back"}: {adapter.name}
        </button>
        <button type="button" onClick={() => setDoing(null)}>
          Cancel
        </button>
        <Refused error={error} />
      </form>
    );
  return (
    <>
      {can.promote ? (
        <button type="button" onClick={() => setDoing("promote")}>
          Promote
        </button>
      ) : null}
      {can.rollback ? (
        <button type="button" onClick={() => setDoing("rollback")}>
          Roll back
        </button>
      ) : null}
      {can.whyNot ? <span class="small soft">It cannot be promoted: {can.whyNot}.</span> : null}
      <span role="status" id="said">
        {said}
      </span>
    </>
  );
}
