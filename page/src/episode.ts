// An episode's calls as they travel, and put together again: long runs come in pages, and each call then carries only
// what no earlier one does.

import { ask, withQuery } from "./api";
import type { Call, EpisodeDetail } from "./types";

export function episodePath(id: string, key: string | undefined, query: Record<string, string | number> = {}): string {
  return withQuery(`/episodes/${encodeURIComponent(id)}`, { key, ...query });
}

/** Calls whole again. Messages are shared, not copied: a run of 2,000 calls holds each one once. */
export function expand(calls: Call[], known = new Map<string, Call>()): Call[] {
  return calls.map((call) => {
    const base = call.prefix ? known.get(call.prefix.call) : undefined;
    let whole = call;
    if (call.prefix && base) {
      const before = [...base.messages, ...base.reply.slice(0, 1)].slice(0, call.prefix.messages);
      whole = {
        ...call,
        messages: [...before, ...call.messages],
        tools: call.prefix.tools ? base.tools : call.tools,
      };
    }
    known.set(call.id, whole);
    return whole;
  });
}

/** All of an episode, page after page; `onPage` is told of what there is so far. */
export async function readEpisode(
  id: string,
  key: string | undefined,
  signal: AbortSignal,
  onPage: (detail: EpisodeDetail) => void,
): Promise<EpisodeDetail> {
  const known = new Map<string, Call>();
  let detail = await ask<EpisodeDetail>(episodePath(id, key), { signal });
  detail = { ...detail, call_list: expand(detail.call_list, known) };
  while (detail.next_call !== null && detail.next_call !== undefined) {
    onPage(detail);
    const more = await ask<EpisodeDetail>(episodePath(id, key, { calls_from: detail.next_call }), { signal });
    if (more.next_call === detail.next_call) break;
    const list = [...detail.call_list, ...expand(more.call_list, known)];
    detail = { ...more, call_list: list };
  }
  return detail;
}
