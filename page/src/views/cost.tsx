// What it costs: tokens, GPU seconds of engines and trainer, and the judge's dollars, by version, task or tag.

import type { JSX } from "preact";
import { withQuery } from "../api";
import { useAsk } from "../data";
import { parseTime } from "../filters";
import { duration, number, plural } from "../format";
import { Field, Refused } from "../parts/ui";
import { change, link, type Place } from "../route";
import type { CostLine, Costs } from "../types";

const KINDS: [string, string][] = [["adapter", "version"], ["task", "task"], ["tag", "tag"], ["model", "model"], ["role", "what runs are for"]];
const TAG = /^[A-Za-z0-9._-]{1,128}$/;

function dollars(line: CostLine): string {
  return line.dollars === null ? "–" : `$${number(line.dollars)}`;
}

/** The runs that a line counts. */
function runs(by: string, tag: string, line: CostLine): string | null {
  if (line.name === null || !line.episodes) return null;
  if (by === "adapter" || by === "task" || by === "model") return link("episodes", "", { [by]: line.name });
  return by === "tag" ? link("episodes", "", { tag: `${tag}=${line.name}` }) : null;
}

export function Cost({ place }: { place: Place }): JSX.Element {
  const { by = "adapter", tag = "", since = "" } = place.query;
  const named = by !== "tag" || TAG.test(tag);
  const from = since ? parseTime(since, Math.floor(Date.now() / 60_000) * 60) : undefined;
  const each = by === "tag" ? `tag.${tag}` : by;
  const { data, error, loading } = useAsk<Costs>(named && from !== null ? withQuery("/cost", { each, since: from }) : null);
  const row = (line: CostLine, name: JSX.Element | string, key: string): JSX.Element => (
    <tr key={key} data-id={key}>
      <td>{name}</td>
      <td class="num">{number(line.episodes)}</td>
      <td class="num">{number(line.calls)}</td>
      <td class="num">{number(line.prompt_tokens)}</td>
      <td class="num">{number(line.completion_tokens)}</td>
      <td class="num">{duration(line.serving_seconds)}</td>
      <td class="num">{duration(line.training_seconds)}</td>
      <td class="num">{dollars(line)}</td>
    </tr>
  );
  const shown = (line: CostLine): JSX.Element | string => {
    const href = runs(by, tag, line);
    return href ? <a href={href}>{line.name}</a> : (line.name ?? (by === "adapter" ? "no version" : `no ${by}`));
  };
  return (
    <>
      <h1>Cost</h1>
      <Refused error={error} />
      <div class="filters" role="search" aria-label="Filters">
        <Field label="by">
          <select name="by" value={by} onChange={(e) => change(place, { by: e.currentTarget.value }, true)}>
            {KINDS.map(([value, text]) => <option key={value} value={value}>{text}</option>)}
          </select>
        </Field>
        {by === "tag" ? (
          <Field label="name of the tag" error={named ? null : "as customer"}>
            <input name="tag" data-search="" value={tag} onInput={(e) => change(place, { tag: e.currentTarget.value || null }, true)} />
          </Field>
        ) : null}
        <Field label="since" kind="narrow" error={from === null ? "2h, 3d, or a date as 2026-01-31" : null}>
          <input name="since" placeholder="2h, 3d" value={since} onInput={(e) => change(place, { since: e.currentTarget.value || null }, true)} />
        </Field>
      </div>
      <p class="small soft">
        Of the runs that are stored. Engine: GPU time of their calls; a moment with several calls at one engine is shared among them. Training: GPU time of the trainer's steps, by version of those that made it.
        Judge: what the scores cost, as far as a price is known.{data?.left_out ? ` ${plural(data.left_out, "line")} with fewer tokens count in the sum alone.` : ""}
      </p>
      {data && named ? (
        <div class="scroll tall" tabIndex={0} role="region" aria-label="Cost" aria-busy={loading}>
          <table>
            <thead>
              <tr>
                <th scope="col">{by === "tag" ? tag : KINDS.find(([value]) => value === by)?.[1]}</th>
                {["episodes", "calls", "tokens of prompts", "tokens sampled", "engine", "training", "judge"].map((name) => <th scope="col" class="num" key={name}>{name}</th>)}
              </tr>
            </thead>
            <tbody>
              {data.lines.map((line) => row(line, shown(line), line.name ?? ""))}
              {row(data.total, <strong>all</strong>, "all of them")}
            </tbody>
          </table>
        </div>
      ) : null}
    </>
  );
}
