// Training: what was learned over adapters and over time, and each figure of the trainer's steps.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { withQuery } from "../api";
import { useAsk } from "../data";
import { fixed, number, plural, words } from "../format";
import { subscribe } from "../live";
import { Chart } from "../parts/chart";
import { Lines } from "../parts/curve";
import { Facts, Field, Mark, Refused, Time } from "../parts/ui";
import { change, link, type Place } from "../route";
import { marks, MEASURES, merge, readEvents, steps, valueOf } from "../training";
import type { Annotations, BatchDetail, TrainingEvent } from "../types";
import { Switch } from "../parts/switch";
import { Advantage } from "./group";

function useEvents(): TrainingEvent[] | null {
  const [events, setEvents] = useState<TrainingEvent[] | null>(null);
  const known = useRef<TrainingEvent[]>([]);
  useEffect(() => {
    const stop = new AbortController();
    let busy = false;
    let wanted = false;
    const load = async (): Promise<void> => {
      wanted = true;
      if (busy) return;
      busy = true;
      wanted = false;
      try {
        known.current = merge(known.current, await readEvents(known.current.at(-1)?.id ?? 0, stop.signal));
        setEvents(known.current);
      } catch {
        // the banner says that the proxy does not answer; the next event asks again
      } finally {
        busy = false;
        if (wanted && !stop.signal.aborted) void load();
      }
    };
    void load();
    const off = subscribe(["step", "adapter"], () => void load());
    return () => {
      stop.abort();
      off();
    };
  }, []);
  return events;
}

export function Training({ place }: { place: Place }): JSX.Element {
  const events = useEvents();
  const notes = useAsk<Annotations>("/annotations", ["step", "adapter"]).data?.annotations ?? [];
  const lines = marks(notes);
  const over = place.query.over === "time" ? "time" : "step";
  const all = events ?? [];
  const done = steps(all);
  return (
    <>
      <h1>Training</h1>
      {place.query.batch ? <Batch id={place.query.batch} place={place} /> : null}
      <Switch />
      <Learned place={place} lines={lines} />
      <div class="row">
        <h2>Steps</h2>
        <div class="row" role="group" aria-label="Steps over">
          {["step", "time"].map((name) => (
            <button type="button" key={name} aria-pressed={over === name} onClick={() => change(place, { over: name }, true)}>
              over {name === "step" ? "versions" : "time"}
            </button>
          ))}
        </div>
      </div>
      {events === null ? <p class="soft">…</p> : null}
      {events && !done.length ? (
        <div class="empty">
          <p>
            No step yet. <a href={link("now")}>Now</a> says what it waits for.
          </p>
        </div>
      ) : null}
      <div class="charts">
        {done.length ? MEASURES.map((m) => {
          const ys = done.map((e) => valueOf(e, m.name));
          if (ys.every((y) => y === null)) return null;
          return (
            <section class="panel" key={m.name} aria-label={m.title}>
              <h3>
                {m.title} <span class="unit">{m.unit}</span>
              </h3>
              <Chart
                label={`${m.title}, ${m.says}`}
                unit={m.unit}
                time={over === "time"}
                xs={over === "time" ? done.map((e) => e.at) : done.map((_, n) => n)}
                xName={(x) => `step ${done[x]?.data.step ?? ""}`}
                series={[{ name: m.title, colour: "live", ys }]}
                marks={over === "time" ? lines : undefined}
                height={170}
              />
              <p class="small soft">{m.says}</p>
            </section>
          );
        }) : null}
      </div>
      <Log events={all} />
    </>
  );
}

const EACH: [string, string][] = [["role", "live, control, held-out"], ["all", "all together, held-out too"], ["task", "by task"], ["split", "by split"], ["arm", "by arm"]];

function Learned({ place, lines }: { place: Place; lines: { x: number; name: string }[] }): JSX.Element {
  const { each = "role", task = "", tag = "", split = "" } = place.query;
  const by = place.query.by === "time" ? "time" : "adapter";
  const what = place.query.what === "success" ? "success" : "mean";
  const set = (name: string) => (e: { currentTarget: { value: string } }) => change(place, { [name]: e.currentTarget.value || null }, true);
  const byTag = each.startsWith("tag.") ? each.slice(4) : "";
  return (
    <section class="panel" aria-labelledby="h-learned">
      <h2 id="h-learned">Learning</h2>
      <div class="filters">
        <Field label="over">
          <select value={by} onChange={set("by")}>
            <option value="adapter">adapters</option>
            <option value="time">time</option>
          </select>
        </Field>
        <Field label="what">
          <select value={what} onChange={set("what")}>
            <option value="mean">mean reward</option>
            <option value="success">success</option>
          </select>
        </Field>
        <Field label="lines">
          <select value={byTag ? "" : each} onChange={set("each")}>
            {EACH.map(([value, name]) => (
              <option key={value} value={value}>
                {name}
              </option>
            ))}
          </select>
        </Field>
        <Field label="or by tag" kind="narrow">
          <input value={byTag} placeholder="name" onChange={(e) => change(place, { each: e.currentTarget.value ? `tag.${e.currentTarget.value}` : null }, true)} />
        </Field>
        <Field label="task" kind="narrow">
          <input value={task} onChange={set("task")} />
        </Field>
        <Field label="tag">
          <input value={tag} placeholder="name:value" onChange={set("tag")} />
        </Field>
        <Field label="split">
          <select value={split} onChange={set("split")}>
            <option value="">all</option>
            <option value="train">train</option>
            <option value="eval">held-out (eval)</option>
          </select>
        </Field>
      </div>
      <Lines by={by} what={what} each={each === "all" ? undefined : each} filters={{ task, tag, split }} marks={lines} />
    </section>
  );
}

function Batch({ id, place }: { id: string; place: Place }): JSX.Element {
  const { data: b, error } = useAsk<BatchDetail>(withQuery(`/batches/${encodeURIComponent(id)}`, {}), ["step", "group"]);
  const most = Math.max(0, ...(b?.episodes ?? []).map((e) => Math.abs(e.advantage ?? 0)));
  return (
    <section class="panel" aria-label={`Batch ${id}`}>
      <div class="row">
        <h2>Batch {id}</h2>
        <button type="button" onClick={() => change(place, { batch: null }, true)}>
          Close
        </button>
      </div>
      <Refused error={error} />
      {b ? (
        <>
          <Facts
            facts={[
              ["state", <Mark kind={b.state === "trained" ? "good" : b.state === "skipped" ? "bad" : "idle"}>{words(b.state)}</Mark>],
              ["why", b.reason],
              ["step", b.step],
              ["made", b.adapter ? <a href={link("adapters", "", { adapter: b.adapter })}>{b.adapter}</a> : null],
              ["leased", <Time at={b.created} />],
              ["groups", b.groups.map((g) => <a key={g} href={link("group", g)}>{g} </a>)],
            ]}
          />
          <div class="scroll" style={{ maxHeight: "20rem" }} tabIndex={0} role="region" aria-label="Episodes of the batch">
            <table>
              <thead>
                <tr>
                  <th scope="col">episode</th>
                  <th scope="col" class="num">reward</th>
                  <th scope="col">advantage</th>
                </tr>
              </thead>
              <tbody>
                {b.episodes.map((e) => (
                  <tr key={`${e.key}/${e.episode}`}>
                    <td><a href={link("episode", e.episode, { key: e.key, colour: "advantage" })}>{e.episode}</a></td>
                    <td class="num">{fixed(e.reward)}</td>
                    <td><Advantage value={e.advantage} most={most} /></td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </>
      ) : null}
    </section>
  );
}

function Log({ events }: { events: TrainingEvent[] }): JSX.Element | null {
  if (!events.length) return null;
  return (
    <section aria-labelledby="h-log">
      <h2 id="h-log">What happened</h2>
      <div class="scroll" style={{ maxHeight: "24rem" }} tabIndex={0} role="region" aria-label="Events">
        <table>
          <thead>
            <tr>
              <th scope="col">what</th>
              <th scope="col">adapter</th>
              <th scope="col">batch</th>
              <th scope="col">why</th>
              <th scope="col" class="num">when</th>
            </tr>
          </thead>
          <tbody>
            {events.slice(-200).reverse().map((e) => (
              <tr key={e.id}>
                <td><Mark kind={MARKS[e.kind] ?? "idle"}>{words(e.kind)}{e.data.step === undefined ? "" : ` ${String(e.data.step)}`}</Mark></td>
                <td>{typeof e.data.adapter === "string" ? <a href={link("adapters", "", { adapter: e.data.adapter })}>{e.data.adapter}</a> : ""}</td>
                <td>{typeof e.data.batch === "string" ? <a href={link("training", "", { batch: e.data.batch })}>{e.data.batch}</a> : ""}</td>
                <td>{reasonOf(e)}</td>
                <td class="num"><Time at={e.at} /></td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="small soft">{plural(Math.min(200, events.length), "event")}, the newest first</p>
    </section>
  );
}

const MARKS: Record<string, string> = { step: "live", skipped: "bad", undone: "bad", rollback: "bad", refused: "bad", promote: "good" };

function reasonOf(e: TrainingEvent): string {
  if (typeof e.data.reason === "string") return e.data.reason;
  if (typeof e.data.text === "string") return e.data.text;
  const kl = valueOf(e, "kl");
  const reward = valueOf(e, "reward");
  return [reward === null ? "" : `reward ${number(reward)}`, kl === null ? "" : `KL ${number(kl)}`].filter(Boolean).join(", ");
}
