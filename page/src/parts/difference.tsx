// The difference of two runs, line by line.

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { type Pair, diff, facing } from "../diff";
import { readEpisode } from "../episode";
import { plural } from "../format";
import { historyOf, type Sent } from "../history";
import { read } from "../messages";
import { pathTo, treeOf } from "../tree";
import type { Call, Episode } from "../types";
import { Mark } from "./ui";

type Run = Pick<Episode, "id" | "key" | "calls">;

/** A run's words, line by line, as a diff compares them. */
export function linesOf(calls: Call[]): string[] {
  const nodes = treeOf(calls);
  const trunk = nodes.filter((n) => n.depth === 0).at(-1) ?? nodes.at(-1);
  if (!trunk) return [];
  const linesIn = ({ message, until, instead }: Sent): string[] => {
    const said = read(message);
    const uses = said.uses.flatMap((u) => [`→ ${u.name}`, ...u.args.split("\n")]);
    const later = until ? [`[call ${until.number + 1} ${instead.length ? "sent in its place" : "left this out"}]`] : [];
    return [`[${said.role}]`, ...(said.text ? said.text.split("\n") : []), ...uses, ...later, ...instead.flatMap(linesIn)];
  };
  return historyOf(pathTo(nodes, trunk.call.id)).flatMap((s) => [...s.own, ...s.reply].flatMap(linesIn));
}

function useLines(run: Run): string[] | null {
  const [lines, setLines] = useState<string[] | null>(null);
  useEffect(() => {
    setLines(null);
    const stop = new AbortController();
    readEpisode(run.id, run.key, stop.signal, () => undefined)
      .then((detail) => setLines(linesOf(detail.call_list)))
      .catch(() => undefined);
    return () => stop.abort();
  }, [run.id, run.key, run.calls]);
  return lines;
}

const CONTEXT = 3;

/** Equal lines far from a difference become one line that says how many they are. */
export function fold(pairs: Pair[]): (Pair | number)[] {
  const near = new Uint8Array(pairs.length);
  pairs.forEach((p, n) => {
    if (p.left === p.right) return;
    near.fill(1, Math.max(0, n - CONTEXT), Math.min(pairs.length, n + CONTEXT + 1));
  });
  const found: (Pair | number)[] = [];
  pairs.forEach((p, n) => {
    if (near[n]) found.push(p);
    else if (typeof found.at(-1) === "number") (found[found.length - 1] as number) += 1;
    else found.push(1);
  });
  return found;
}

export function Difference({ left, right }: { left: Run; right: Run }): JSX.Element {
  const [a, b] = [useLines(left), useLines(right)];
  const pairs = useMemo(() => (a && b ? fold(facing(diff(a, b))).slice(0, 3000) : null), [a, b]);
  return (
    <>
      {!pairs ? (
        <p class="soft">Reading both runs…</p>
      ) : pairs.every((p) => typeof p === "number") ? (
        <p><Mark kind="good">They say the same.</Mark></p>
      ) : (
        <div class="diff">
          <table>
            <thead>
              <tr>
                <th scope="col">{left.id}</th>
                <th scope="col">{right.id}</th>
              </tr>
            </thead>
            <tbody>
              {pairs.map((p, n) =>
                typeof p === "number" ? (
                  <tr key={n}>
                    <td colSpan={2} class="soft">
                      {plural(p, "equal line")}
                    </td>
                  </tr>
                ) : (
                  <tr key={n} class={`${p.left !== null && p.left !== p.right ? "less" : ""} ${p.right !== null && p.left !== p.right ? "more" : ""}`}>
                    <td>{p.left}</td>
                    <td>{p.right}</td>
                  </tr>
                ),
              )}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}
