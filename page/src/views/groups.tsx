// Groups: runs of one task that are compared. A row opens the group with its runs side by side.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { withQuery } from "../api";
import { usePages } from "../data";
import { number, words } from "../format";
import { step, useKeys } from "../keyboard";
import { type Column, VirtualTable } from "../parts/table";
import { Field, Mark, Num, Refused, Stopped, Time } from "../parts/ui";
import { change, link, type Place } from "../route";
import type { GroupPage, GroupSummary } from "../types";

const STATES = ["forming", "waiting_reward", "ready", "leased", "trained", "skipped", "stale", "dropped", "eval", "window"];
const MARKS: Record<string, string> = {
  trained: "live", ready: "candidate", leased: "candidate", eval: "eval", skipped: "bad", stale: "bad", dropped: "bad",
};

export function GroupState({ group }: { group: GroupSummary }): JSX.Element {
  const name = group.parked ? "parked" : words(group.state);
  return (
    <Mark kind={group.parked ? "bad" : (MARKS[group.state] ?? "idle")}>
      {group.state === "eval" ? "held-out" : name}
      {group.cause ? `: ${words(group.cause)}` : ""}
    </Mark>
  );
}

const COLUMNS: Column<GroupSummary>[] = [
  { name: "group", cell: (g) => <a href={link("group", g.id)} tabIndex={-1}>{g.id}</a> },
  { name: "task", whole: (g) => g.task, cell: (g) => g.task ?? (g.kind === "like" ? "alike runs" : "") },
  { name: "state", wide: true, cell: (g) => <GroupState group={g} /> },
  { name: "runs", num: true, cell: (g) => number(g.episodes) },
  { name: "rewarded", num: true, cell: (g) => number(g.rewarded) },
  { name: "mean", title: "mean reward", num: true, cell: (g) => <Num value={g.mean} column /> },
  { name: "low", title: "lowest", num: true, cell: (g) => <Num value={g.low} column /> },
  { name: "high", title: "highest", num: true, cell: (g) => <Num value={g.high} column /> },
  { name: "step", num: true, cell: (g) => (g.step === null ? "" : <a href={link("training", "", { batch: g.batch })} tabIndex={-1}>{g.step}</a>) },
  { name: "made", title: "adapter made", cell: (g) => (g.adapter ? <a href={link("adapters", "", { adapter: g.adapter })} tabIndex={-1}>{g.adapter}</a> : "") },
  { name: "began", num: true, cell: (g) => <Time at={g.created} /> },
];

export function Groups({ place }: { place: Place }): JSX.Element {
  const { task, state, split, adapter, batch } = place.query;
  const pages = usePages<GroupSummary>(
    (cursor) => withQuery("/groups", { task, state, split, adapter, batch, limit: 100, cursor }),
    (answer) => ({ rows: (answer as GroupPage).groups, next: (answer as GroupPage).next }),
    (g) => g.id,
    ["group", "reward", "step"],
  );
  const [chosen, setChosen] = useState<string | null>(null);
  const move = (by: 1 | -1): void => {
    const next = step(pages.rows, (g) => g.id, chosen, by);
    if (next) setChosen(next.id);
  };
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    Enter: () => (chosen ? void (location.hash = link("group", chosen)) : false),
    Escape: () => setChosen(null),
  });
  const problem = (name: string): string | null => (pages.error?.field === `query.${name}` ? pages.error.message : null);
  const set = (name: string) => (e: { currentTarget: { value: string } }) => change(place, { [name]: e.currentTarget.value || null }, true);
  return (
    <>
      <h1>Groups</h1>
      <div class="filters" role="search" aria-label="Filters">
        <Field label="task" error={problem("task")}>
          <input name="task" data-search="" value={task ?? ""} onChange={set("task")} />
        </Field>
        <Field label="state">
          <select name="state" value={state ?? ""} onChange={set("state")}>
            <option value="">all</option>
            {STATES.map((s) => (
              <option key={s} value={s}>
                {s === "eval" ? "held-out (eval)" : words(s)}
              </option>
            ))}
          </select>
        </Field>
        <Field label="adapter" error={problem("adapter")}>
          <input name="adapter" value={adapter ?? ""} onChange={set("adapter")} />
        </Field>
        <Field label="batch" error={problem("batch")}>
          <input name="batch" value={batch ?? ""} onChange={set("batch")} />
        </Field>
      </div>
      {pages.error && !problem("task") && !problem("adapter") && !problem("batch") ? <Refused error={pages.error} /> : null}
      <Stopped why={pages.stopped} again={pages.loadMore} />
      {pages.rows.length || pages.loading || pages.error ? (
        <VirtualTable
          label="Groups"
          columns={COLUMNS}
          rows={pages.error ? [] : pages.rows}
          idOf={(g) => g.id}
          chosen={chosen}
          onChoose={(g) => setChosen(g.id)}
          onEnd={pages.more && !pages.stopped ? pages.loadMore : undefined}
          busy={pages.loading}
        />
      ) : (
        <div class="empty">
          <p>No groups match. Runs of the same task (<code>x-slipstream-task</code>) form groups as they end.</p>
        </div>
      )}
    </>
  );
}
