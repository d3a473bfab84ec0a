// Sets of cases: copies of episodes that each new version is tried on. One set's cases, at any version.

import type { JSX } from "preact";
import { withQuery } from "../api";
import { useAsk } from "../data";
import { number, plural } from "../format";
import { Field, Refused, Time } from "../parts/ui";
import { change, link, type Place } from "../route";
import type { CasePage, CaseSets } from "../types";

export function Cases({ place }: { place: Place }): JSX.Element {
  const { data, error } = useAsk<CaseSets>("/cases", ["episode"]);
  const sets = data?.sets ?? [];
  return (
    <>
      <h1>Cases</h1>
      <p class="small soft">
        A case is a copy of an episode. <code>slipstream replay SET --against …</code> tries another model or prompt on a set; with <code>gate.mode = "replay"</code> each new version has to
        pass the sets of <code>gate.replay.sets</code>.
      </p>
      <Refused error={error} />
      {data && !sets.length ? <div class="empty"><p>There is no set yet. An episode's page adds it to one, and so does <code>slipstream cases add</code>.</p></div> : null}
      {sets.length ? (
        <div class="scroll" tabIndex={0} role="region" aria-label="Sets of cases">
          <table>
            <thead>
              <tr>
                <th scope="col">set</th>
                <th scope="col" class="num">version</th>
                <th scope="col" class="num">cases</th>
                <th scope="col" class="num">changed</th>
              </tr>
            </thead>
            <tbody>
              {sets.map((s) => (
                <tr key={s.name} aria-selected={s.name === place.id}>
                  <td><a href={link("cases", s.name)}>{s.name}</a></td>
                  <td class="num">{number(s.version)}</td>
                  <td class="num">{number(s.cases)}</td>
                  <td class="num"><Time at={s.changed} /></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
      {place.id ? <One place={place} key={place.id} /> : null}
    </>
  );
}

function One({ place }: { place: Place }): JSX.Element {
  const { version = "", after = "" } = place.query;
  const { data, error } = useAsk<CasePage>(withQuery(`/cases/${encodeURIComponent(place.id)}`, { version, after }), ["episode"]);
  const versions = data ? Array.from({ length: Math.min(data.set.version, 50) }, (_, n) => data.set.version - n) : [];
  return (
    <section class="panel" aria-label={`Set ${place.id}`}>
      <div class="row">
        <h2>{place.id}</h2>
        <Field label="version">
          <select value={String(data?.version ?? "")} onChange={(e) => change(place, { version: e.currentTarget.value, after: null }, true)}>
            {versions.map((v) => <option key={v} value={String(v)}>{v}</option>)}
          </select>
        </Field>
      </div>
      <Refused error={error} />
      {data ? (
        <div class="scroll tall" tabIndex={0} role="region" aria-label="Cases">
          <table>
            <thead>
              <tr>
                <th scope="col">episode</th>
                <th scope="col">task</th>
                <th scope="col">tags</th>
                <th scope="col" class="num">calls</th>
                <th scope="col" class="num">reward</th>
                <th scope="col" class="num">since version</th>
                <th scope="col" class="num">added</th>
              </tr>
            </thead>
            <tbody>
              {data.cases.map((c) => (
                <tr key={`${c.key}/${c.episode}`}>
                  <td><a href={link("episode", c.episode, { key: c.key })}>{c.episode}</a></td>
                  <td>{c.task ?? "–"}</td>
                  <td class="wide">{Object.entries(c.tags).map(([k, v]) => `${k}=${v}`).join(" ")}</td>
                  <td class="num">{number(c.calls)}</td>
                  <td class="num">{number(c.reward)}</td>
                  <td class="num">{number(c.since)}</td>
                  <td class="num"><Time at={c.added} /></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
      <p class="small">
        {data ? plural(data.cases.length, "case") : "…"}
        {after ? <> <a href={link("cases", place.id, { version })}>from the first</a></> : null}
        {data?.next ? <> <a href={link("cases", place.id, { version, after: data.next })}>the next ones</a></> : null}
      </p>
    </section>
  );
}
