// Keys that work everywhere but in a field: j and k go through rows, / goes to the search, ? shows the keys, Esc back.

import { useLayoutEffect, useRef } from "preact/hooks";

export const KEYS: [string, string][] = [
  ["j / k", "the next or the previous row"],
  ["Enter", "open the chosen row"],
  ["← / →", "the token before or after, in a call's tokens"],
  ["/", "search"],
  ["1, 0, c, a, Enter", "good, bad, a note, assign, save and go on, where you label"],
  ["g then n, e, w, g, a, c, t, o, r, l, u, p, m", "go to Now, Episodes, Tasks, Groups, Adapters, Cases, Training, Cost, Judge, Label, Audit, Plug-ins, Tenants"],
  ["?", "show or hide these keys"],
  ["Esc", "close, or leave the field"],
];

export function inField(target: EventTarget | null): boolean {
  if (target instanceof HTMLInputElement && target.type === "checkbox") return false; // nothing is typed into it
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

/** `handlers` by key; one that answers false leaves the key to the browser. */
export function useKeys(handlers: Record<string, () => boolean | void>): void {
  const latest = useRef(handlers);
  latest.current = handlers;
  // at once, and not after the paint: a key that is pressed meanwhile counts
  useLayoutEffect(() => {
    const pressed = (event: KeyboardEvent): void => {
      if (document.querySelector("dialog[open]")) return; // its keys are its own
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      if (inField(event.target)) {
        if (event.key === "Escape") (event.target as HTMLElement).blur();
        return;
      }
      const handler = latest.current[event.key];
      if (handler && handler() !== false) event.preventDefault();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

/** j and k over a list: `chosen` is an id of it, or null. */
export function step<T>(rows: T[], idOf: (row: T) => string, chosen: string | null, by: 1 | -1): T | undefined {
  const at = rows.findIndex((row) => idOf(row) === chosen);
  return at < 0 ? rows[0] : rows[Math.min(rows.length - 1, Math.max(0, at + by))];
}
