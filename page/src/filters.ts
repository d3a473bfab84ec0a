// The filters of the episodes' table: in the URL as they stand in the API, checked before they are asked.

export const FILTERS = [
  "q", "task", "adapter", "split", "outcome", "trainable", "kind", "reward_min", "reward_max", "since", "until", "tag", "state", "model", "key",
] as const;
export type FilterName = (typeof FILTERS)[number];
export type Filters = Partial<Record<FilterName, string>>;

const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const TAG = /^[A-Za-z0-9._-]{1,128}$/;

/** Seconds since the epoch of `2h`, `3d`, or of a date; null where it is neither. `now` in seconds. */
export function parseTime(text: string, now: number): number | null {
  const back = /^(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)$/.exec(text.trim());
  if (back) {
    const size = { s: 1, m: 60, min: 60, h: 3600, d: 86_400, w: 604_800 }[back[2] as "s"];
    return now - Number(back[1]) * size;
  }
  if (/^\d{9,11}(\.\d+)?$/.test(text.trim())) return Number(text);
  const at = /^\d{4}-\d\d(-\d\d.*)?$/.test(text.trim()) ? Date.parse(text.trim()) : NaN;
  return Number.isNaN(at) ? null : at / 1000;
}

/** A tag's name, and its value if there is one: all behind the first `:` or `=`, whatever text it is. */
function tagParts(text: string): [string, string | null] {
  const at = text.search(/[=:]/);
  return at < 0 ? [text.trim(), null] : [text.slice(0, at).trim(), text.slice(at + 1).trim()];
}

/** What is wrong, by field; nothing is asked while there is something. */
export function mistakes(filters: Filters): Filters {
  const found: Filters = {};
  for (const name of ["reward_min", "reward_max"] as const) {
    const value = filters[name];
    if (value && !NUMBER.test(value.trim())) found[name] = "a number, as 0.5";
  }
  for (const name of ["since", "until"] as const) {
    const value = filters[name];
    if (value && parseTime(value, 0) === null) found[name] = "2h, 3d, or a date as 2026-01-31";
  }
  if (filters.tag) {
    const [name, value] = tagParts(filters.tag);
    if (!TAG.test(name) || value === "") found.tag = "name:value, or a name";
  }
  return found;
}

/** Parameters of `GET episodes` and `GET export`. */
export function toQuery(filters: Filters, now: number): Record<string, string> {
  const query: Record<string, string> = {};
  for (const [name, value] of Object.entries(filters) as [FilterName, string][]) {
    if (!value) continue;
    if (name === "tag") query.tag = tagParts(value).filter((part) => part !== null).join(":");
    else if (name === "since" || name === "until") query[name] = String(parseTime(value, now) ?? "");
    else query[name] = value.trim();
  }
  return query;
}

/** The field of ours that a refusal of the API names (`query.reward_min`, `query.tag.lang`). */
export function fieldOf(problem: string | null): FilterName | null {
  const name = problem?.replace(/^query\./, "").split(".")[0] ?? "";
  return (FILTERS as readonly string[]).includes(name) ? (name as FilterName) : null;
}
