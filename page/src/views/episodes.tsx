// Episodes: a dense table that scrolls through all of them, its filters in the URL, and a preview of the chosen one.

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { API, headers, withQuery } from "../api";
import { useAsk, useNow, usePages } from "../data";
import { episodePath } from "../episode";
import { FILTERS, type FilterName, fieldOf, type Filters, mistakes, toQuery } from "../filters";
import { duration, number, plural } from "../format";
import { step, useKeys } from "../keyboard";
import { useMay } from "../may";
import { errorText, headline } from "../messages";
import { isMeasured, NO_ADAPTER, tagsOf, taskOf } from "../names";
import { SavedFilters } from "../parts/savedfilters";
import { type Column, VirtualTable } from "../parts/table";
import { Ends, Facts, Field, Mark, Num, Outcome, Refused, Stopped, Time } from "../parts/ui";
import { change, link, parsePlace, type Place } from "../route";
import type { Episode, EpisodeDetail, EpisodePage, Status } from "../types";

const idOf = (e: Episode): string => `${e.key}/${e.id}`;

/** The mark of a run's arm. One that no adapter of ours answered was imported, or came from another server. */
export function arm(e: Episode): string {
  if (e.adapter === null) return "idle";
  if (e.split === "eval") return "eval";
  return e.arm === "live" || e.arm === "candidate" ? e.arm : e.arm === "best" ? "best" : "control";
}

export function armName(e: Episode): string {
  return e.adapter === null ? NO_ADAPTER : e.split === "eval" ? "held-out" : e.arm;
}

/** Rows that are loaded at most to come back to one. */
const MOST_SOUGHT = 5000;
const MORE: FilterName[] = ["split", "state", "outcome", "trainable", "kind", "reward_min", "reward_max", "since", "until", "key"];
const COLUMNS: Column<Episode>[] = [
  { name: "episode", whole: (e) => e.id, cell: (e) => <a href={link("episode", e.id, { key: e.key })} tabIndex={-1}><Ends text={e.id} /></a> },
  { name: "task", whole: taskOf, cell: taskOf },
  { name: "adapter", whole: (e) => e.adapter, cell: (e) => e.adapter ?? "" },
  { name: "arm", cell: (e) => <Mark kind={arm(e)}>{armName(e)}</Mark> },
  { name: "outcome", whole: (e) => e.error ?? null, cell: (e) => <Outcome of={e} /> },
  { name: "reward", num: true, cell: (e) => <Num value={e.reward} column /> },
  { name: "calls", num: true, cell: (e) => number(e.calls) },
  { name: "tokens", num: true, cell: (e) => (isMeasured(e) ? number(e.prompt_tokens + e.completion_tokens) : "–") },
  { name: "took", num: true, cell: (e) => (e.ended === null ? "" : isMeasured(e) ? duration(e.ended - e.started) : "–") },
  { name: "tags", wide: true, cell: (e) => tagsOf(e).map(([k, v]) => <span class="tag" key={k}>{k}={v}</span>) },
  { name: "started", num: true, cell: (e) => <Time at={e.started} /> },
];

export function Episodes({ place, status }: { place: Place; status: Status | null }): JSX.Element {
  const filters = useMemo(() => {
    const found: Filters = {};
    for (const name of FILTERS) if (place.query[name]) found[name] = place.query[name];
    return found;
  }, [place]);
  const wrong = mistakes(filters);
  // times like "2h" are taken from when they were typed, so that each page asks for the same
  const query = useMemo(() => toQuery(filters, Math.floor(Date.now() / 1000)), [JSON.stringify(filters)]);
  const ok = Object.keys(wrong).length === 0;
  const pages = usePages<Episode>(
    (cursor) => withQuery("/episodes", { ...(ok ? query : {}), limit: 100, cursor }),
    (answer) => ({ rows: (answer as EpisodePage).episodes, next: (answer as EpisodePage).next, reached: (answer as EpisodePage).searched_to }),
    idOf,
    ["call", "episode", "reward"],
  );
  // what somebody looks at stays where it is: newer rows wait above it until they are asked for
  const [top, setTop] = useState<string | null>(null);
  const all = ok && !pages.error ? pages.rows : [];
  const waiting = top === null ? 0 : Math.max(0, all.findIndex((e) => idOf(e) === top));
  const rows = all.slice(waiting);
  const hold = (): void => setTop((before) => before ?? (rows[0] ? idOf(rows[0]) : null));
  const chosen = place.query.at ?? null;
  const setChosen = (at: string | null): void => {
    if (at) hold();
    change(parsePlace(location.hash), { at }, true);
  };
  // Back comes to the same row, however far down it was
  const [missing, reached] = [chosen !== null && rows.every((e) => idOf(e) !== chosen), rows.length];
  useEffect(() => {
    if (chosen !== null && reached) hold();
    if (missing && reached && reached < MOST_SOUGHT && pages.more && !pages.stalled) pages.loadMore();
  }, [missing, reached]);
  const row = rows.find((e) => idOf(e) === chosen);
  const refused = fieldOf(pages.error?.field ?? null);
  const problems: Filters = { ...wrong };
  if (pages.error && refused) problems[refused] = pages.error.message.replace(/^query\.[^:]*: /, "") + (pages.error.fix ? ` – ${pages.error.fix}` : "");
  const move = (by: 1 | -1): void => {
    const next = step(rows, idOf, chosen, by);
    if (next) setChosen(idOf(next));
  };
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    Enter: () => (row ? void (location.hash = link("episode", row.id, { key: row.key })) : false),
    Escape: () => setChosen(null),
  });
  const total = Object.entries(status?.episodes ?? {}).reduce((n, [s, c]) => n + (s === "deleted" ? 0 : c), 0);
  const filtered = Object.keys(filters).length > 0;
  const sees = useMay("viewer");
  return (
    <>
      <h1>Episodes</h1>
      <Filter place={place} filters={filters} problems={problems} />
      {ok ? <SavedFilters filters={filters} /> : null}
      {pages.error && !refused ? <Refused error={pages.error} /> : null}
      <Warning rows={rows} />
      <div class="row small soft">
        <span role="status" class="count">
          {ok && !pages.error
            ? `${number(rows.length)}${pages.more ? " loaded, more below" : ""}${filtered ? " that match" : sees ? ` of ${number(Math.max(total, rows.length))}` : " made with your key"}`
            : "nothing is shown until the filter is right"}
        </span>
        {filtered ? (
          <button type="button" onClick={() => change(place, Object.fromEntries(FILTERS.map((name) => [name, null])), true)}>
            Clear all filters
          </button>
        ) : null}
        {waiting ? (
          <button type="button" onClick={() => (setTop(null), setChosen(null))}>
            Show {plural(waiting, "newer episode")}
          </button>
        ) : null}
        {pages.more && pages.stalled ? (
          <button type="button" onClick={pages.loadMore}>
            Search further back{pages.reached ? <> than <Time at={pages.reached} /></> : null}
          </button>
        ) : null}
        <Export query={query} disabled={!ok || !rows.length} />
      </div>
      <Stopped why={pages.stopped} again={pages.loadMore} />
      {rows.length || pages.loading ? null : <Nothing filtered={filtered} ok={ok && !pages.error} others={sees ? 0 : total} />}
      <div class="split preview" onPointerEnter={hold} onPointerLeave={() => chosen === null && setTop(null)} hidden={!rows.length && !(ok && pages.loading)}>
        <VirtualTable
          label="Episodes"
          columns={COLUMNS}
          rows={rows}
          idOf={idOf}
          chosen={chosen}
          onChoose={(e) => setChosen(idOf(e))}
          onEnd={pages.more && !pages.stalled && !pages.stopped ? pages.loadMore : undefined}
          busy={pages.loading}
          total={filtered || !sees ? undefined : total}
        />
        <aside class="pane" aria-label="Preview">
          {row ? <Preview episode={row} /> : <p class="soft small">Choose a row (click, or j and k) to see what it is about.</p>}
        </aside>
      </div>
    </>
  );
}

/** `others`: episodes of other keys, which this one does not see. */
function Nothing({ filtered, ok, others }: { filtered: boolean; ok: boolean; others: number }): JSX.Element | null {
  if (!ok) return null;
  if (others && !filtered)
    return (
      <div class="empty">
        <p>None of the {plural(others, "episode")} came with your key. To see them all takes a key with the scope viewer.</p>
      </div>
    );
  return (
    <div class="empty">
      <p>{filtered ? "No episode fits these filters." : <>No episode yet. <a href={link("now")}>Now</a> shows the line to paste into your agent.</>}</p>
    </div>
  );
}

function Filter(props: { place: Place; filters: Filters; problems: Filters }): JSX.Element {
  const { place, filters, problems } = props;
  const form = useRef<HTMLDivElement>(null);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => {
    if (place.query.focus === "q") {
      form.current?.querySelector<HTMLInputElement>("[data-search]")?.focus();
      change(place, { focus: null }, true);
    }
  }, []);
  const typed = useRef<Record<string, string | null>>({});
  const set = (name: FilterName, value: string, wait = 250): void => {
    clearTimeout(timer.current);
    typed.current[name] = value || null;
    timer.current = setTimeout(() => {
      change(parsePlace(location.hash), typed.current, true);
      typed.current = {};
    }, wait);
  };
  const text = (name: FilterName, label: string, kind = "", hint = ""): JSX.Element => (
    <Field label={label} error={problems[name]} kind={kind} key={name}>
      <input
        name={name}
        value={filters[name] ?? ""}
        placeholder={hint}
        aria-invalid={problems[name] ? "true" : undefined}
        data-search={name === "q" ? "" : undefined}
        onInput={(e) => set(name, e.currentTarget.value)}
      />
    </Field>
  );
  const choice = (name: FilterName, label: string, values: [string, string][]): JSX.Element => (
    <Field label={label} error={problems[name]} key={name}>
      <select name={name} value={filters[name] ?? ""} onChange={(e) => set(name, e.currentTarget.value, 0)}>
        <option value="">all</option>
        {values.map(([value, shown]) => (
          <option key={value} value={value}>
            {shown}
          </option>
        ))}
      </select>
    </Field>
  );
  return (
    <div class="filters" ref={form} role="search" aria-label="Filters">
      {text("q", "text in messages", "wide", "words of any message")}
      {text("task", "task")}
      {text("tag", "tag", "", "name:value")}
      {text("adapter", "adapter")}
      <details open={matchMedia("(min-width: 701px)").matches || MORE.some((name) => filters[name] || problems[name])}>
        <summary>More filters</summary>
        <div>
          {choice("split", "split", [["train", "train"], ["eval", "held-out (eval)"]])}
          {choice("state", "state", [["open", "open"], ["done", "done"], ["deleted", "deleted"]])}
          {choice("outcome", "outcome", [["ok", "ok"], ["aborted", "aborted"], ["error", "error"], ["superseded", "superseded"], ["failed", "failed: no call was answered"]])}
          {choice("trainable", "trainable", [["true", "yes"], ["false", "no"]])}
          {text("kind", "with a call that is", "narrow", "title, subagent")}
          {text("reward_min", "reward from", "narrow")}
          {text("reward_max", "to", "narrow")}
          {text("since", "since", "narrow", "2h, 3d")}
          {text("until", "until", "narrow")}
          {text("key", "key", "narrow")}
        </div>
      </details>
    </div>
  );
}

function Export({ query, disabled }: { query: Record<string, string>; disabled: boolean }): JSX.Element {
  const [format, setFormat] = useState("jsonl");
  const [said, setSaid] = useState("");
  const save = async (): Promise<void> => {
    setSaid("Exporting…");
    try {
      const response = await fetch(API + withQuery("/export", { ...query, format }), { headers: headers() });
      if (!response.ok) throw new Error(`the proxy answered ${response.status}`);
      const url = URL.createObjectURL(await response.blob());
      const anchor = document.createElement("a");
      anchor.href = url;
      anchor.download = `episodes.${format === "parquet" ? "parquet" : "jsonl"}`;
      anchor.click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
      setSaid("");
    } catch (e) {
      setSaid(`The export failed: ${(e as Error).message}`);
    }
  };
  return (
    <span class="row">
      <select aria-label="Format of the export" value={format} onChange={(e) => setFormat(e.currentTarget.value)}>
        {["jsonl", "sft", "dpo", "parquet"].map((name) => (
          <option key={name}>{name}</option>
        ))}
      </select>
      <button type="button" disabled={disabled} onClick={() => void save()}>
        Export all that match
      </button>
      <span role="status">{said}</span>
    </span>
  );
}

/** One constant id used for ever: an episode that never ends, or one that starts again and again as id~2, id~3, … */
function Warning({ rows }: { rows: Episode[] }): JSX.Element | null {
  const again = rows.filter((e) => /~\d+$/.test(e.id));
  const names = new Set(again.map((e) => `${e.key} ${e.id.replace(/~\d+$/, "")}`));
  const long = rows.find((e) => e.calls > 500);
  const first = again[0];
  if (first && again.length >= 5 && names.size === 1)
    return (
      <p class="banner warn">
        Every episode is called {first.id.replace(/~\d+$/, "")}: give each run of the agent its own x-slipstream-episode.
      </p>
    );
  if (!long) return null;
  return (
    <p class="banner warn">
      The episode {long.id} has {number(long.calls)} calls: is one id used for all runs? Give each run its own.
    </p>
  );
}

/** The first episode that is chosen waits for the second one. */
function Compare({ of }: { of: Episode }): JSX.Element {
  const [first, setFirst] = useState(() => sessionStorage.getItem("compare"));
  const keep = (id: string | null): void => {
    if (id) sessionStorage.setItem("compare", id);
    else sessionStorage.removeItem("compare");
    setFirst(id);
  };
  if (!first || first === idOf(of))
    return (
      <button type="button" aria-pressed={first !== null} onClick={() => keep(first ? null : idOf(of))}>
        {first ? "Choose another one to compare it with" : "Compare"}
      </button>
    );
  return (
    <p class="row">
      <a href={link("compare", "", { left: first, right: idOf(of) })} onClick={() => keep(null)}>Compare with {first.slice(first.indexOf("/") + 1)}</a>
      <button type="button" onClick={() => keep(null)}>Cancel</button>
    </p>
  );
}

function Preview({ episode: e }: { episode: Episode }): JSX.Element {
  const { data, error } = useAsk<EpisodeDetail>(
    episodePath(e.id, e.key),
    ["call", "reward"],
  );
  const now = useNow();
  const first = data?.call_list[0];
  const last = data?.call_list.at(-1);
  const asked = first?.messages.find((m) => typeof m === "object" && m !== null && !Array.isArray(m) && m.role === "user");
  return (
    <>
      <h2 style={{ marginTop: 0 }}>
        <a href={link("episode", e.id, { key: e.key })}>{e.id}</a>
      </h2>
      <Compare of={e} />
      <Refused error={error} />
      <Facts
        facts={[
          ["task", taskOf(e)],
          ["outcome", e.error ? <Outcome of={e} whole /> : null],
          ["reward", <Num value={e.reward} />],
          ["adapter", e.adapter ? <a href={link("adapters", "", { adapter: e.adapter })}>{e.adapter}</a> : null],
          ["group", e.group ? <a href={link("group", e.group)}>{e.group}</a> : null],
          ["calls", plural(e.calls, "call")],
          ["took", e.ended === null ? `open for ${duration(now - e.started)}` : isMeasured(e) ? duration(e.ended - e.started) : "–"],
        ]}
      />
      {first ? (
        <>
          <h3>Asked</h3>
          <p class="small">{headline(asked ?? first.messages.at(-1), 400)}</p>
        </>
      ) : null}
      {last ? (
        <>
          <h3>Answered last</h3>
          <p class="small">{headline(last.reply[0], 400) || (last.error ? errorText(last.error) : "nothing")}</p>
        </>
      ) : null}
      {data?.rewards.length ? (
        <>
          <h3>Rewards</h3>
          {data.rewards.map((r) => (
            <p class="small" key={`${r.name}${r.at}`}>
              {r.name} <Num value={r.value} /> by {r.source}
              {r.reason ? `: ${r.reason.slice(0, 300)}` : ""}
            </p>
          ))}
        </>
      ) : null}
    </>
  );
}
