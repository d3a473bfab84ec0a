// Any two episodes beside each other: what is known of both, and the difference of what was said.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { useAsk } from "../data";
import { episodePath } from "../episode";
import { number } from "../format";
import { taskOf } from "../names";
import { Difference } from "../parts/difference";
import { Field, Refused } from "../parts/ui";
import { change, link, type Place } from "../route";
import type { EpisodeDetail } from "../types";

/** `key/id`, as it stands in the URL; a mere id is one of no key. */
export function parseRun(text: string): { id: string; key: string } {
  const at = text.indexOf("/");
  return at < 0 ? { id: text, key: "-" } : { id: text.slice(at + 1), key: text.slice(0, at) };
}

export function Compare({ place }: { place: Place }): JSX.Element {
  const [left, right] = [useRun(place.query.left), useRun(place.query.right)];
  const { a, b } = { a: left.data, b: right.data };
  return (
    <>
      <h1>Two episodes</h1>
      <div class="row">
        {(["left", "right"] as const).map((side) => (
          <Chosen key={side} side={side} place={place} />
        ))}
      </div>
      <Refused error={left.error ?? right.error} />
      {a && b ? (
        <>
          <table>
            <thead>
              <tr>
                <td />
                {[a, b].map((e) => (
                  <th scope="col" key={`${e.key}/${e.id}`}><a href={link("episode", e.id, { key: e.key })}>{e.id}</a></th>
                ))}
              </tr>
            </thead>
            <tbody>
              {FACTS.map(([name, of]) => (
                <tr key={name}>
                  <th scope="row">{name}</th>
                  <td>{of(a)}</td>
                  <td>{of(b)}</td>
                </tr>
              ))}
            </tbody>
          </table>
          <Difference left={a} right={b} />
        </>
      ) : (
        <p class="soft">Give the ids of two episodes. The list of episodes has “Compare” at the chosen one.</p>
      )}
    </>
  );
}

const FACTS: [string, (e: EpisodeDetail) => string][] = [
  ["task", taskOf],
  ["adapter", (e) => e.adapter ?? "–"],
  ["reward", (e) => number(e.reward)],
  ["calls", (e) => number(e.calls)],
  ["tokens sampled", (e) => number(e.completion_tokens)],
  ["not trainable", (e) => number(e.call_list.filter((c) => !c.trainable).length)],
];

function useRun(wanted: string | undefined): ReturnType<typeof useAsk<EpisodeDetail>> {
  const run = wanted ? parseRun(wanted) : null;
  return useAsk<EpisodeDetail>(run && episodePath(run.id, run.key), ["call", "reward"]);
}

function Chosen({ side, place }: { side: "left" | "right"; place: Place }): JSX.Element {
  const [text, setText] = useState(place.query[side] ?? "");
  return (
    <form onSubmit={(e) => (e.preventDefault(), change(place, { [side]: text.trim() || null }, true))}>
      <Field label={`${side} episode`}>
        <input name={side} value={text} placeholder="id, or key/id" onInput={(e) => setText(e.currentTarget.value)} onBlur={() => change(place, { [side]: text.trim() || null }, true)} />
      </Field>
    </form>
  );
}
