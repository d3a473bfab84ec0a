// `useAsk`: a path's answer, asked for again when its topics change. One reply in flight at a time; an answer that is
// late (the path has changed meanwhile) is dropped; a refused request empties what is shown, a lost connection keeps it.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError, ask, connection } from "./api";
import { subscribe, type Topic } from "./live";

export interface Asked<T> {
  data: T | null;
  error: ApiError | null;
  loading: boolean;
  /** What is shown is of this path, and not of the one before. */
  fresh: boolean;
  reload: () => void;
}

const SPACING_MS = 400;

export function useAsk<T>(path: string | null, topics: readonly Topic[] = []): Asked<T> {
  const [state, setState] = useState<{ path: string | null; data: T | null; error: ApiError | null; loading: boolean }>(
    { path, data: null, error: null, loading: path !== null },
  );
  const again = useRef<() => void>(() => undefined);
  const topicsKey = topics.join();
  useEffect(() => {
    if (path === null) {
      setState({ path, data: null, error: null, loading: false });
      return;
    }
    const stop = new AbortController();
    let busy = false;
    let wanted = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    setState((before) => ({ ...before, loading: true }));

    const load = async (): Promise<void> => {
      if (busy) {
        wanted = true;
        return;
      }
      busy = true;
      try {
        const data = await ask<T>(path, { signal: stop.signal });
        if (!stop.signal.aborted) setState({ path, data, error: null, loading: false });
      } catch (e) {
        if (stop.signal.aborted) return;
        if (e instanceof ApiError) setState({ path, data: null, error: e, loading: false });
        else setState((before) => ({ ...before, loading: false }));
      } finally {
        busy = false;
        if (wanted && !stop.signal.aborted) {
          wanted = false;
          timer = setTimeout(() => void load(), SPACING_MS);
        }
      }
    };
    again.current = () => void load();
    void load();
    const off = subscribe(topics, () => void load());
    return () => {
      stop.abort();
      clearTimeout(timer);
      off();
    };
  }, [path, topicsKey]);
  const reload = useCallback(() => again.current(), []);
  return { data: state.data, error: state.error, loading: state.loading, fresh: state.path === path && state.data !== null, reload };
}

/** An answer's list, page after page: what is there already stays where it is while the first page is asked again. */
export interface Paged<T> {
  rows: T[];
  error: ApiError | null;
  loading: boolean;
  more: boolean;
  /** The last page was empty, and there are more: a search has looked so far and found nothing. */
  stalled: boolean;
  /** How far back it has looked, seconds since the epoch. */
  reached: number | null;
  /** Why the next page did not come; `loadMore` asks for it again. */
  stopped: string | null;
  loadMore: () => void;
  reload: () => void;
}

export function usePages<T>(
  pathOf: (cursor: string | null) => string,
  read: (answer: unknown) => { rows: T[]; next: string | null; reached?: number | null },
  idOf: (row: T) => string,
  topics: readonly Topic[],
): Paged<T> {
  const path = pathOf(null);
  const first = useAsk<unknown>(path, topics);
  const [older, setOlder] = useState<{ path: string; rows: T[]; next: string | null | undefined; reached: number | null; stalled: boolean }>(
    { path, rows: [], next: undefined, reached: null, stalled: false },
  );
  const busy = useRef(false);
  const [stopped, setStopped] = useState<{ path: string; why: string } | null>(null);
  const mine = older.path === path ? older : { path, rows: [] as T[], next: undefined, reached: null, stalled: false };
  const head: ReturnType<typeof read> = first.data === null ? { rows: [], next: null } : read(first.data);
  const seen = new Set(head.rows.map(idOf));
  const rows = [...head.rows, ...mine.rows.filter((row) => !seen.has(idOf(row)))];
  const next = mine.next === undefined ? head.next : mine.next;

  const loadMore = (): void => {
    if (busy.current || next === null || first.error) return;
    busy.current = true;
    ask<unknown>(pathOf(next))
      .then((answer) => {
        const page = read(answer);
        // rows that new ones push out of the first page are kept: the page after them began there
        const kept = mine.rows.length ? mine.rows : head.rows;
        const known = new Set(kept.map(idOf));
        setStopped(null);
        setOlder({ path, rows: [...kept, ...page.rows.filter((row) => !known.has(idOf(row)))], next: page.next, reached: page.reached ?? null, stalled: !page.rows.length });
      })
      .catch((e: unknown) => setStopped({ path, why: (e as Error).message }))
      .finally(() => {
        busy.current = false;
      });
  };
  const unread = mine.next === undefined;
  return {
    rows,
    error: first.error,
    loading: first.loading,
    more: next !== null,
    stalled: unread ? !head.rows.length : mine.stalled,
    reached: unread ? (head.reached ?? null) : mine.reached,
    stopped: stopped?.path === path ? stopped.why : null,
    loadMore,
    reload: first.reload,
  };
}

export function useConnection(): { lost: boolean; needsKey: boolean } {
  const [state, setState] = useState({ lost: connection.lost, needsKey: connection.needsKey });
  useEffect(() => connection.listen(() => setState({ lost: connection.lost, needsKey: connection.needsKey })), []);
  return state;
}

/** Seconds since the epoch, told anew every `every` seconds: relative times stay true. */
export function useNow(every = 10): number {
  const [now, setNow] = useState(() => Date.now() / 1000);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now() / 1000), every * 1000);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}
