// The view and its filters stand in the URL's fragment: `#/episodes?task=t1&sort=reward`. The fragment never leaves the
// browser, a link to it opens the same view, and Back goes back.

import { useEffect, useState } from "preact/hooks";

export interface Place {
  view: string;
  id: string;
  query: Record<string, string>;
}

export function parsePlace(hash: string): Place {
  const text = hash.replace(/^#\/?/, "");
  const cut = text.indexOf("?");
  const path = cut < 0 ? text : text.slice(0, cut);
  const [view = "", ...rest] = path.split("/");
  return {
    view: view || "now",
    id: decode(rest.join("/")),
    query: Object.fromEntries(new URLSearchParams(cut < 0 ? "" : text.slice(cut + 1))),
  };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function link(view: string, id = "", query: Record<string, string | number | null | undefined> = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") search.set(name, String(value));
  }
  const text = search.toString();
  return `#/${view}${id ? `/${encodeURIComponent(id)}` : ""}${text ? `?${text}` : ""}`;
}

export function usePlace(): Place {
  const [place, setPlace] = useState(() => parsePlace(location.hash));
  useEffect(() => {
    const changed = (): void => setPlace(parsePlace(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return place;
}

/** Go on in the same view with other filters. `replace`: no step of its own for Back (typing, choosing a row). */
export function change(place: Place, query: Record<string, string | null>, replace = false): void {
  const next: Record<string, string | null> = { ...place.query, ...query };
  const to = link(place.view, place.id, next);
  if (replace) {
    history.replaceState(null, "", to);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = to;
}
