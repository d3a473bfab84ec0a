// Cases to label: one episode after the other, its transcript beside the form.

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { ApiError, withQuery } from "../api";
import { useAsk } from "../data";
import { readEpisode } from "../episode";
import { number, percent, plural } from "../format";
import { useKeys } from "../keyboard";
import { taskOf } from "../names";
import { Comments } from "../parts/comments";
import { LabelForm } from "../parts/labelform";
import { Transcript } from "../parts/transcript";
import { Field, Mark, Refused, Time } from "../parts/ui";
import { change, link, parsePlace, type Place } from "../route";
import { lastOfRun, treeOf } from "../tree";
import type { Episode, EpisodeDetail, LabelCases } from "../types";

const idOf = (e: Pick<Episode, "id" | "key">): string => `${e.key}/${e.id}`;

export function Label({ place }: { place: Place }): JSX.Element {
  const [second, setSecond] = useState(false);
  const assigned = place.query.assigned ?? "";
  const { data, error, fresh } = useAsk<LabelCases>(withQuery("/labels/queue", { limit: 100, second, assigned }), ["episode", "reward"]);
  const [done, setDone] = useState<ReadonlySet<string>>(new Set());
  const cases = (data?.cases ?? []).filter((c) => !done.has(idOf(c.episode)));
  const queue = cases.map((c) => c.episode);
  const wanted = place.id ? { id: place.id, key: place.query.key ?? "-" } : null;
  const at = queue.findIndex((e) => e.id === wanted?.id && e.key === wanted.key);
  const go = (e: Episode | undefined): void => {
    if (e) location.hash = link("label", e.id, { key: e.key, assigned });
  };
  /** Another queue, from its beginning. */
  const anew = (others: boolean, to: string): void => {
    setSecond(others);
    change({ ...parsePlace(location.hash), id: "" }, { assigned: to || null, key: null }, true);
  };
  // what a person has before them stays, however the queue moves meanwhile
  const first = queue[0];
  useEffect(() => {
    if (place.id || !first || !fresh) return;
    history.replaceState(null, "", link("label", first.id, { key: first.key, assigned }));
    dispatchEvent(new HashChangeEvent("hashchange"));
  }, [place.id, first?.id, first?.key, fresh]);
  useKeys({ j: () => go(queue[at + 1]), k: () => go(queue[Math.max(0, at - 1)]) });
  const next = (): void => {
    if (wanted) setDone(new Set([...done, idOf(wanted)]));
    const after = queue.filter((e) => e.id !== wanted?.id || e.key !== wanted.key);
    if (after.length) go(after[Math.min(at, after.length - 1)] ?? after[0]);
    else location.hash = link("label", "", { assigned });
  };
  return (
    <>
      <h1>Cases to label</h1>
      <Refused error={error} />
      <p class="small soft">
        {data && data.looked_at <= data.cases.length
          ? `${plural(queue.length, "episode")} in the queue`
          : `The first ${data ? number(queue.length) : "…"} of the newest ${data ? number(data.looked_at) : "…"} episodes without a label`}
        , those first of which a label tells most; {data ? number(data.labelled) : "…"} labelled so far{done.size ? `, ${number(done.size)} since you came` : ""}. j and k go through them; 1 is good, 0 is bad, c writes a note, a assigns, Enter saves and goes on.
      </p>
      <div class="row comment" role="search" aria-label="Filters">
      <Field label="assigned to">
        <input name="assigned" value={assigned} onInput={(e) => anew(second, e.currentTarget.value)} />
      </Field>
      <label class="small row">
        <input type="checkbox" name="second" checked={second} onChange={(e) => anew(e.currentTarget.checked, assigned)} /> runs that others labelled and this key did not
      </label>
      </div>
      {data?.agreement ? (
        <p class="small" id="agreement">
          {plural(data.agreement.people, "person", "people")} labelled {plural(data.agreement.runs, "run")} twice or more: {percent(data.agreement.same)} of {plural(data.agreement.pairs, "pair")} of labels are equal (truly {percent(data.agreement.low)} to {percent(data.agreement.high)}), {number(data.agreement.distance)} apart on average.
        </p>
      ) : null}
      {wanted ? (
        // shown with the queue, whose line above it may change its height when it comes
        <div class="split preview" style={data || error ? undefined : { visibility: "hidden" }}>
          <Case
            key={idOf(wanted)}
            id={wanted.id}
            owner={wanted.key}
            why={cases.find((c) => idOf(c.episode) === idOf(wanted))?.why}
            onDone={next}
          />
          <nav class="pane" aria-label="Queue">
            <ol class="small">
              {cases.slice(0, 50).map(({ episode: e, why, assigned: to }) => (
                <li key={idOf(e)}>
                  <a href={link("label", e.id, { key: e.key, assigned })} aria-current={e.id === wanted.id && e.key === wanted.key ? "true" : undefined}>
                    {e.id}
                  </a>{" "}
                  {e.task ? <span class="tag">{taskOf(e)}</span> : null} {to ? <span class="tag">for {to}</span> : null} <span class="soft">{why}</span>
                </li>
              ))}
            </ol>
          </nav>
        </div>
      ) : data && !queue.length ? (
        <div class="empty">
          <p>
            <Mark kind="good">There is nothing to label{assigned ? ` for ${assigned}` : ""}.</Mark> Episodes come here when they are done.
          </p>
        </div>
      ) : null}
    </>
  );
}

function Case(props: { id: string; owner: string; why?: string; onDone: () => void }): JSX.Element {
  const { id, owner, onDone } = props;
  const [detail, setDetail] = useState<EpisodeDetail | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  useEffect(() => {
    const stop = new AbortController();
    readEpisode(id, owner, stop.signal, () => undefined)
      .then(setDetail)
      .catch((e: unknown) => void (e instanceof ApiError && setError(e)));
    return () => stop.abort();
  }, [id, owner]);
  const nodes = useMemo(() => treeOf(detail?.call_list ?? []), [detail]);
  const [call, setCall] = useState<string | null>(null);
  const last = lastOfRun(nodes);
  const chosen = nodes.find((n) => n.call.id === call) ?? last;
  return (
    <section aria-label={`Episode ${id}`} class={detail || error ? "" : "view-to-come"}>
      <h2 style={{ marginTop: 0 }}>
        <a href={link("episode", id, { key: owner })}>{id}</a>
      </h2>
      <Refused error={error} />
      {props.why ? <p class="small">Why this one: {props.why}</p> : null}
      <LabelForm episode={id} owner={owner} of={chosen?.call} isLast={chosen === last} onDone={onDone} />
      <Comments episode={id} owner={owner} />
      {detail?.rewards.map((r) => (
        <p class="small" key={`${r.name}${r.at}${r.source}`}>
          {r.name} <strong>{number(r.value)}</strong> by {r.source} <Time at={r.at} />
          {r.reason ? <>: {r.reason}</> : null}
        </p>
      ))}
      {chosen ? <Transcript key={id + owner} nodes={nodes} chosen={chosen.call.id} onChoose={setCall} /> : null}
    </section>
  );
}
