// Filters that somebody keeps under a name, in this browser alone: name → the query of the episodes' view.

const STORE_KEY = "saved-filters";
const MOST_SAVED = 30;
export const MOST_NAME_CHARS = 60;

export type Saved = Record<string, Record<string, string>>;

/** What is kept; nothing where the browser keeps nothing, or where something else wrote there. */
export function readSaved(store: Pick<Storage, "getItem">): Saved {
  try {
    const found: unknown = JSON.parse(store.getItem(STORE_KEY) ?? "{}");
    if (typeof found !== "object" || found === null || Array.isArray(found)) return {};
    return Object.fromEntries(
      Object.entries(found).flatMap(([name, query]) => {
        if (typeof query !== "object" || query === null) return [];
        const parts = Object.entries(query).filter((part): part is [string, string] => typeof part[1] === "string");
        return parts.length ? [[name, Object.fromEntries(parts)]] : [];
      }),
    );
  } catch {
    return {};
  }
}

/** With one more; the oldest goes where there are too many. A name that is there already means the new filters. */
export function withSaved(saved: Saved, name: string, query: Record<string, string>): Saved {
  const kept = Object.entries(saved).filter(([known]) => known !== name);
  return Object.fromEntries([...kept, [name, query] as const].slice(-MOST_SAVED));
}

export function withoutSaved(saved: Saved, name: string): Saved {
  return Object.fromEntries(Object.entries(saved).filter(([known]) => known !== name));
}

/** → whether the browser took it. */
export function writeSaved(store: Pick<Storage, "setItem">, saved: Saved): boolean {
  try {
    store.setItem(STORE_KEY, JSON.stringify(saved));
    return true;
  } catch {
    return false;
  }
}
