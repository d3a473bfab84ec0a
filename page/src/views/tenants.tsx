// Whom the proxy serves: what each uses, and what is worst. An operator's alone; one click goes into a tenant's place.

import type { JSX } from "preact";
import { goInto } from "../api";
import { useAsk } from "../data";
import { fixed, number, words } from "../format";
import { Mark, Refused } from "../parts/ui";
import type { Tenant, Tenants as List } from "../types";

function used(one: Tenant): string {
  const parts = Object.entries(one.quota ?? {}).map(
    ([what, most]) => `${words(what.replace(/_per_day$/, ""))} ${number(one.used?.[what] ?? 0)} of ${number(most)}`,
  );
  return parts.join(", ") || "–";
}

export function Tenants(): JSX.Element {
  const { data, error, loading } = useAsk<List>("/tenants", ["status", "adapter", "step"]);
  const row = (one: Tenant): JSX.Element => {
    const use = one.adapter_use;
    return (
      <tr key={one.name} data-id={one.name}>
        <td>
          <button type="button" class="link" onClick={() => goInto(one.name)} disabled={!one.running}>{one.name}</button>
        </td>
        <td><Mark kind={one.running ? (one.trouble ? "warn" : "good") : "bad"}>{one.running ? (one.trouble ?? "runs") : (one.reason ?? "down")}</Mark></td>
        <td>{Object.values(one.live ?? {}).join(", ") || "–"}</td>
        <td class="num">{number(one.calls)}</td>
        <td class="num">{number(one.episodes)}</td>
        <td>{used(one)}</td>
        <td class="num">{number(use?.loads)}</td>
        <td class="num">{use?.waits ? `${number(use.waits)} × ${fixed((use.wait_seconds ?? 0) / use.waits, 1)} s` : "–"}</td>
      </tr>
    );
  };
  return (
    <>
      <h1>Tenants</h1>
      <Refused error={error} />
      <p class="small soft">Quotas are of today (UTC). Loads: copies of its versions into an engine’s slot. Waits: calls that waited for a slot.</p>
      {data ? (
        <div class="scroll tall" tabIndex={0} role="region" aria-label="Tenants" aria-busy={loading}>
          <table>
            <thead>
              <tr>
                {["tenant", "state", "live"].map((name) => <th scope="col" key={name}>{name}</th>)}
                {["calls", "episodes"].map((name) => <th scope="col" class="num" key={name}>{name}</th>)}
                <th scope="col">quota used</th>
                {["loads", "waits"].map((name) => <th scope="col" class="num" key={name}>{name}</th>)}
              </tr>
            </thead>
            <tbody>{(data.tenants ?? []).map(row)}</tbody>
          </table>
        </div>
      ) : null}
    </>
  );
}
