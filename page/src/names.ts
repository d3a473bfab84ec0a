// What people called things. An id is what the proxy made of a text that is none: the text itself is kept as a tag.

import type { Episode } from "./types";

type Named = Pick<Episode, "task" | "tags">;

/** The task as the agent named it. Filters take it as they take the id. */
export function taskOf(episode: Named): string {
  return episode.tags["task-text"] ?? episode.task ?? "";
}

/** Tags, without the texts of what has a place of its own. */
export function tagsOf(episode: Named): [string, string][] {
  return Object.entries(episode.tags).filter(([name]) => name !== "task-text");
}
