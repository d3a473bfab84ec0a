// What people called things. An id is what the proxy made of a text that is none: the text itself is kept as a tag.

import type { Call, Episode } from "./types";

type Named = Pick<Episode, "task" | "tags">;

/** The task as the agent named it. Filters take it as they take the id. */
export function taskOf(episode: Named): string {
  return episode.tags["task-text"] ?? episode.task ?? "";
}

/** What stands for an adapter in figures where there is none: of imported episodes, and of other servers' ones. */
export const NO_ADAPTER = "no adapter";

/** Tags, without the texts of what has a place of its own. */
export function tagsOf(episode: Named): [string, string][] {
  return Object.entries(episode.tags).filter(([name]) => name !== "task-text");
}

/** It was read in from another tool's file: its text is known, its times, tokens and parameters are not. */
export function isImported(call: Pick<Call, "id">): boolean {
  return call.id.startsWith("0000000000");
}

/** Whether the proxy itself saw the episode's calls, and so knows how long they took. */
export function isMeasured(e: Pick<Episode, "adapter" | "prompt_tokens" | "completion_tokens">): boolean {
  return e.adapter !== null || e.prompt_tokens + e.completion_tokens > 0;
}
