// One episode: the tree of its calls, the transcript up to the chosen one, and all that is known of that call.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { ApiError, post, withQuery } from "../api";
import { useNow } from "../data";
import { readEpisode } from "../episode";
import { duration, number, plural, signed } from "../format";
import { useKeys } from "../keyboard";
import { subscribe } from "../live";
import { useMay } from "../may";
import { isMeasured, tagsOf, taskOf } from "../names";
import { Comments } from "../parts/comments";
import { CallTree } from "../parts/calltree";
import { Inspector } from "../parts/inspector";
import type { Colour } from "../parts/tokens";
import { Transcript } from "../parts/transcript";
import { Mark, Outcome, Refused, Time } from "../parts/ui";
import { change, link, type Place } from "../route";
import { lastOfRun, treeOf } from "../tree";
import type { CaseSet, EpisodeDetail, Reward } from "../types";
import { arm, armName } from "./episodes";

function useEpisode(id: string, key: string | undefined): { detail: EpisodeDetail | null; error: ApiError | null } {
  const [state, setState] = useState<{ detail: EpisodeDetail | null; error: ApiError | null }>({ detail: null, error: null });
  useEffect(() => {
    const stop = new AbortController();
    let busy = false;
    let again = false;
    let any = false;
    const load = async (): Promise<void> => {
      if (busy) {
        again = true;
        return;
      }
      busy = true;
      try {
        const page = (detail: EpisodeDetail): void => void (any || setState({ detail, error: null }));
        const detail = await readEpisode(id, key, stop.signal, page);
        any = true;
        setState({ detail, error: null });
      } catch (error) {
        if (!stop.signal.aborted && error instanceof ApiError) setState({ detail: null, error });
      } finally {
        busy = false;
        if (again && !stop.signal.aborted) {
          again = false;
          setTimeout(() => void load(), 500);
        }
      }
    };
    void load();
    const off = subscribe(["call", "reward", "episode", "step"], () => void load());
    return () => {
      stop.abort();
      off();
    };
  }, [id, key]);
  return state;
}

export function Episode({ place }: { place: Place }): JSX.Element {
  const { detail, error } = useEpisode(place.id, place.query.key);
  const nodes = useMemo(() => treeOf(detail?.call_list ?? []), [detail]);
  const colour = (["logprob", "advantage", "gap"].includes(place.query.colour ?? "") ? place.query.colour : "logprob") as Colour;
  const wanted = place.query.call;
  const chosen = nodes.find((n) => n.call.id === wanted) ?? lastOfRun(nodes);
  const choose = (call: string): void => change(place, { call }, true);
  const move = (by: number): void => {
    const at = nodes.findIndex((n) => n === chosen);
    const next = nodes[at + by];
    if (next) choose(next.call.id);
  };
  useKeys({ j: () => move(1), k: () => move(-1), Escape: () => history.back() });
  if (error)
    return (
      <>
        <h1>Episode {place.id}</h1>
        <Refused error={error} />
        <a href={link("episodes")}>All episodes</a>
      </>
    );
  if (!detail) return <p class="soft">Reading {place.id}…</p>;
  return (
    <>
      <Head detail={detail} />
      {chosen ? (
        <div class="split three">
          <section class="pane" aria-label="Tree of calls">
            <CallTree nodes={nodes} chosen={chosen.call.id} onChoose={choose} />
          </section>
          <section aria-label="Transcript">
            <Transcript nodes={nodes} chosen={chosen.call.id} onChoose={choose} jump={wanted !== undefined} />
          </section>
          <aside class="pane" aria-label="Inspector">
            <Inspector
              key={chosen.call.id}
              node={chosen}
              detail={detail}
              colour={colour}
              onColour={(next) => change(place, { colour: next }, true)}
            />
          </aside>
        </div>
      ) : (
        <p class="soft">{detail.state === "deleted" ? "Its calls were deleted." : "No call of it is stored (any more)."}</p>
      )}
    </>
  );
}

/** Keep a copy in a set of cases, which new versions are tried on. */
function AddToCases({ detail: d }: { detail: EpisodeDetail }): JSX.Element | null {
  const decides = useMay();
  const [name, setName] = useState<string | null>(null);
  const [said, setSaid] = useState("");
  const [error, setError] = useState<ApiError | null>(null);
  const add = async (event: Event): Promise<void> => {
    event.preventDefault();
    setError(null);
    try {
      const done = await post<{ set: CaseSet; too_large: string[]; dropped: string[]; unknown: string[] }>(withQuery(`/cases/${encodeURIComponent(name ?? "")}`, { key: d.key }), { episodes: [d.id] });
      const why = done.too_large.length ? "it is too large to be copied" : done.dropped.length ? "retention has dropped its calls" : done.unknown.length ? "it is not stored any more" : "";
      setSaid(why ? `not added: ${why}` : `it is in ${done.set.name}, version ${done.set.version}`);
      setName(null);
    } catch (e) {
      setError(e instanceof ApiError ? e : new ApiError(0, (e as Error).message));
    }
  };
  if (!decides || d.state !== "done") return null;
  return name === null ? (
    <>
      <button type="button" onClick={() => setName("must-pass")}>Add to cases</button>
      <span role="status" class="small">{said}</span>
    </>
  ) : (
    <form class="row" onSubmit={(e) => void add(e)}>
      <input aria-label="set of cases" name="set" required pattern="[A-Za-z0-9._\-]{1,128}" value={name} onInput={(e) => setName(e.currentTarget.value)} />
      <button class="primary">Add</button>
      <button type="button" onClick={() => setName(null)}>Cancel</button>
      <Refused error={error} />
    </form>
  );
}

function Head({ detail: d }: { detail: EpisodeDetail }): JSX.Element {
  const now = useNow();
  const item = (content: ComponentChildren): JSX.Element => <span>{content}</span>;
  return (
    <>
      <h1>Episode {d.id}</h1>
      <div class="row about">
        {d.task ? item(<>task <a href={link("episodes", "", { task: d.task })} title={d.task}>{taskOf(d)}</a></>) : null}
        {item(<Mark kind={arm(d)}>{armName(d)}</Mark>)}
        {d.adapter ? item(<>adapter <a href={link("adapters", "", { adapter: d.adapter })}>{d.adapter}</a></>) : null}
        {item(<Outcome of={d} whole />)}
        {item(<>reward <strong>{number(d.reward)}</strong></>)}
        {d.advantage === null ? null : item(<>advantage <strong>{signed(d.advantage)}</strong></>)}
        {d.group ? item(<>group <a href={link("group", d.group)}>{d.group}</a></>) : null}
        {item(plural(d.calls, "call"))}
        {item(<>began <Time at={d.started} />, {d.ended === null ? `open for ${duration(now - d.started)}` : isMeasured(d) ? `took ${duration(d.ended - d.started)}` : "imported"}</>)}
        {tagsOf(d).map(([k, v]) => (
          <a class="tag" key={k} href={link("episodes", "", { tag: `${k}=${v}` })}>
            {k}={v}
          </a>
        ))}
        {item(<a href={link("label", d.id, { key: d.key })}>Label it</a>)}
        <AddToCases detail={d} />
      </div>
      <Comments episode={d.id} owner={d.key} fold />
      {d.rewards.length || d.lineage.length ? (
        <details class="panel" open={d.rewards.length < 4}>
          <summary>
            {plural(d.rewards.length, "reward")}
            {d.lineage.length ? `, in ${plural(d.lineage.length, "batch", "batches")}` : ""}
          </summary>
          {d.rewards.map((r) => (
            <p class="small" key={`${r.name}${r.at}${r.source}`}>
              <strong>{r.name}</strong> {r.name === "words" ? null : number(r.value)} by {r.source} <Time at={r.at} />
              {r.call === null ? null : <> about {callName(d, r.call)}</>}
              {said(r) ? <>: {said(r)}</> : null}
              {taught(r).map(([call, nats]) => (
                <span class="soft" key={call} title="mean change of a sampled token's log-probability with these words in the prompt">
                  {" "}
                  · {callName(d, call)} {signed(nats)} nats a token
                </span>
              ))}
            </p>
          ))}
          {d.lineage.map((l) => (
            <p class="small" key={l.batch}>
              batch <a href={link("training", "", { batch: l.batch })}>{l.batch}</a> {l.outcome}
              {l.advantage === null ? null : <>, advantage {signed(l.advantage)}</>}
              {l.adapter ? <>, made <a href={link("adapters", "", { adapter: l.adapter })}>{l.adapter}</a></> : null}
            </p>
          ))}
        </details>
      ) : null}
    </>
  );
}

/** A call by its number, where the page has it. */
const callName = (d: EpisodeDetail, id: string): string => {
  const call = d.call_list.find((c) => c.id === id);
  return call ? `call ${call.number}` : id;
};

/** What a user said, a better reply too; else why a reward is what it is. Another reward's `meta` is its sender's. */
const said = (r: Reward): string | null =>
  ["words", "thumbs"].includes(r.name) && typeof r.meta.words === "string" ? r.meta.words : r.reason;

/** What a user's words changed: call and nats a token, as the trainer told it. */
const taught = (r: Reward): [string, number][] => Object.entries((r.meta.taught ?? {}) as Record<string, number>);
