// What a version changed in behaviour: its runs beside those of the base model, measure by measure, linked to runs that show it.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { withQuery } from "../api";
import { useAsk } from "../data";
import { between, number, plural, signed, words } from "../format";
import { link } from "../route";
import type { Adapter, BehaviourAnswer, BehaviourChange, MeasureMean } from "../types";
import { Mark, Refused } from "./ui";

const NAMES: Record<string, string> = {
  turns: "calls a run",
  reply_tokens: "tokens a reply",
  seconds: "seconds a call",
  cut_off: "share of calls cut off",
  refusals: "share of calls refused",
  tool_errors: "share of calls with a broken tool call",
};

const side = (m: MeasureMean): string => `${between(m.mean, m.low, m.high)} of ${number(m.n)}`;

export function Shift({ of: x }: { of: Pick<BehaviourChange, "difference" | "low" | "high"> }): JSX.Element {
  const said = `${signed(x.difference, 2)} (${signed(x.low, 2)} to ${signed(x.high, 2)})`;
  return x.low > 0 || x.high < 0 ? <Mark kind="candidate">{said}</Mark> : <Mark kind="idle">{`${said}, may be chance`}</Mark>;
}

export function Behaviour({ adapter }: { adapter: Adapter }): JSX.Element {
  const [open, setOpen] = useState(false);
  const [split, setSplit] = useState("");
  const path = `/adapters/${encodeURIComponent(adapter.name)}/behaviour`;
  const { data, error } = useAsk<BehaviourAnswer>(open ? withQuery(path, { split }) : null, ["episode"]);
  return (
    <details id="behaviour" onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary>What it changed in behaviour</summary>
      <Refused error={error} />
      {open ? (
        <select aria-label="Runs that are compared" value={split} onChange={(e) => setSplit(e.currentTarget.value)}>
          <option value="">train and held-out</option>
          <option value="train">train</option>
          <option value="eval">held-out (eval)</option>
        </select>
      ) : null}
      {data && !data.changes.length ? <p class="soft">{data.base} or {data.adapter} has no finished run yet.</p> : null}
      {data?.changes.length ? (
        <>
          <p class="small soft">
            {data.tasks ? `Over the ${plural(data.tasks, "task")} that both have.` : "They have no task in common, so other tasks may make the difference."}{" "}
            At most the newest {data.latest} runs of each. In brackets: 95 % interval.
          </p>
          {data.pairs.length ? (
            <p class="small" id="pairs">
              The same task side by side:{" "}
              {data.pairs.map((p) => <a key={p.task} href={link("compare", "", { left: p.base, right: p.version })}>{p.task} </a>)}
            </p>
          ) : null}
          <div class="scroll" tabIndex={0} role="region" aria-label="What it changed in behaviour">
            <table>
              <thead>
                <tr>
                  <th scope="col">of a run</th>
                  <th scope="col" class="num"><a href={link("episodes", "", { adapter: data.base })}>{data.base}</a></th>
                  <th scope="col" class="num"><a href={link("episodes", "", { adapter: data.adapter })}>{data.adapter}</a></th>
                  <th scope="col">difference</th>
                  <th scope="col">runs that show it most</th>
                </tr>
              </thead>
              <tbody>
                {data.changes.map((x) => (
                  <tr key={x.measure} data-id={x.measure}>
                    <th scope="row">{NAMES[x.measure] ?? words(x.measure)}</th>
                    <td class="num">{side(x.base)}</td>
                    <td class="num">{side(x.version)}</td>
                    <td class="wide"><Shift of={x} /></td>
                    <td class="wide">
                      {(x.difference ? x.runs : []).map((r) => (
                        <a key={`${r.key}/${r.id}`} href={link("episode", r.id, { key: r.key })} title={number(r.value)}>{r.id} </a>
                      ))}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </>
      ) : null}
    </details>
  );
}
