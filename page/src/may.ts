// What the key of this page may change. Unknown at first: then everything is offered, and the proxy refuses what it must.

import { createContext } from "preact";
import { useContext } from "preact/hooks";

export const Scopes = createContext<readonly string[] | null>(null);

/** Whether a key of one of these scopes may do it; an admin may do all. */
export function may(scopes: readonly string[] | null | undefined, wanted: readonly string[]): boolean {
  return !scopes || scopes.includes("admin") || wanted.some((scope) => scopes.includes(scope));
}

export function useMay(...wanted: string[]): boolean {
  return may(useContext(Scopes), wanted);
}
