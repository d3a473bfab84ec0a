// Which task fails most, and what does a failing run look like: each task with the base model and now, and its worst runs.

import type { JSX } from "preact";
import { withQuery } from "../api";
import { useAsk } from "../data";
import { between, number, plural, signed } from "../format";
import { Field, Mark, Refused } from "../parts/ui";
import { change, link, type Place } from "../route";
import type { TaskRuns, TaskStanding, TaskTable } from "../types";

const SORTS: Record<string, (t: TaskStanding) => number | string | null> = {
  task: (t) => t.name,
  base: (t) => t.base?.mean ?? null,
  now: (t) => t.now?.mean ?? t.base?.mean ?? null,
  difference: (t) => t.difference,
  runs: (t) => -((t.now?.n ?? 0) + (t.base?.n ?? 0)),
};

function compare(a: number | string | null, b: number | string | null): number {
  if (a === null || b === null) return Number(a === null) - Number(b === null);
  return typeof a === "string" ? a.localeCompare(String(b)) : a - Number(b);
}

const runs = (r: TaskRuns | null): string => (r ? `${between(r.mean, r.low, r.high)} of ${number(r.n)}` : "–");
const shift = (t: TaskStanding, name: "calls" | "tokens"): string =>
  [t.base, t.now].map((r) => (r ? number(r[name], 2) : "–")).join(" → ");

function Difference({ of: t }: { of: TaskStanding }): JSX.Element {
  if (t.difference === null || t.low === null || t.high === null) return <>–</>;
  const kind = t.low > 0 ? "good" : t.high < 0 ? "bad" : "idle";
  const said = `${signed(t.difference, 2)} (${signed(t.low, 2)} to ${signed(t.high, 2)})`;
  return <Mark kind={kind}>{kind === "idle" ? `${said}, may be chance` : said}</Mark>;
}

export function Tasks({ place }: { place: Place }): JSX.Element {
  const { split = "", find = "", sort = "now" } = place.query;
  const { data, error } = useAsk<TaskTable>(withQuery("/tasks", { split }), ["reward"]);
  const down = sort.startsWith("-");
  const key = SORTS[sort.slice(Number(down))] ?? (SORTS.now as (typeof SORTS)[string]);
  const known = (data?.tasks ?? []).filter((t) => t.name.toLowerCase().includes(find.toLowerCase()));
  const rows = [...known].sort((a, b) => (down ? compare(key(b), key(a)) : compare(key(a), key(b))));
  const head = (name: string, title: string, num = true): JSX.Element => (
    <th scope="col" class={num ? "num" : ""} aria-sort={sort === name ? "ascending" : sort === `-${name}` ? "descending" : undefined}>
      <button type="button" class="plain" onClick={() => change(place, { sort: sort === name ? `-${name}` : name }, true)}>
        {title}{sort === name ? " ▲" : sort === `-${name}` ? " ▼" : ""}
      </button>
    </th>
  );
  return (
    <>
      <h1>Tasks</h1>
      <Refused error={error} />
      <div class="filters" role="search" aria-label="Filters">
        <Field label="task">
          <input name="find" data-search="" value={find} onInput={(e) => change(place, { find: e.currentTarget.value || null }, true)} />
        </Field>
        <Field label="runs">
          <select name="split" value={split} onChange={(e) => change(place, { split: e.currentTarget.value || null }, true)}>
            <option value="">train and held-out</option>
            <option value="train">train</option>
            <option value="eval">held-out (eval)</option>
          </select>
        </Field>
      </div>
      <p class="small soft">
        {data
          ? `${plural(rows.length, "task")}. Now: the latest ${data.latest} runs of a task with any version. In brackets: 95 % interval.${data.left_out ? ` ${plural(data.left_out, "task")} that do better are left out.` : ""}`
          : "…"}
      </p>
      {data && !rows.length ? <div class="empty"><p>No run that has a task has a reward{find || split ? " and fits" : " yet"}.</p></div> : null}
      {rows.length ? (
        <div class="scroll tall" tabIndex={0} role="region" aria-label="Tasks">
          <table>
            <thead>
              <tr>
                {head("task", "task", false)}
                {head("base", "base")}
                {head("now", "now")}
                {head("difference", "difference", false)}
                <th scope="col" class="num">calls a run</th>
                <th scope="col" class="num">tokens sampled a run</th>
                {head("runs", "worst runs", false)}
              </tr>
            </thead>
            <tbody>
              {rows.slice(0, 500).map((t) => (
                <tr key={`${t.model}/${t.task}`} data-id={t.task}>
                  <td title={t.name}><a href={link("episodes", "", { task: t.task })}>{t.name}</a></td>
                  <td class="num">{runs(t.base)}</td>
                  <td class="num">{runs(t.now)}</td>
                  <td class="wide"><Difference of={t} /></td>
                  <td class="num">{shift(t, "calls")}</td>
                  <td class="num">{shift(t, "tokens")}</td>
                  <td class="wide">
                    {t.worst.map((w) => (
                      <a key={`${w.key}/${w.id}`} href={link("episode", w.id, { key: w.key })} title={`reward ${number(w.reward)}`}>{w.id} </a>
                    ))}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
    </>
  );
}
