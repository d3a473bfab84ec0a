// Who changed what by hand, and what the gate decided.

import type { JSX } from "preact";
import { withQuery } from "../api";
import { usePages } from "../data";
import { words } from "../format";
import { textOf } from "../messages";
import { type Column, VirtualTable } from "../parts/table";
import { Field, Refused, Stopped, Time } from "../parts/ui";
import { change, link, type Place } from "../route";
import type { AuditEntry, AuditPage } from "../types";

const OF_VERSIONS = new Set([
  "promote", "demote", "freeze", "unfreeze", "rollback", "accept", "canary", "rollback_best", "rollback_group", "replay passed", "replay refused",
  "replay undecided", "train anew",
]);
const ACTIONS = [
  ...OF_VERSIONS, "label", "assign", "comment", "delete", "forget", "key_add", "key_revoke", "pause", "resume",
  "train again", "train again, stop", "judge rerun", "cases add", "cases import", "cases remove", "cases drop", "annotate", "import",
];

function target(e: AuditEntry): JSX.Element {
  if (OF_VERSIONS.has(e.action)) return <a href={link("adapters", "", { adapter: e.target })} tabIndex={-1}>{e.target}</a>;
  const { key } = e.detail;
  if (["label", "assign", "comment"].includes(e.action) && typeof key === "string") return <a href={link("episode", e.target, { key })} tabIndex={-1}>{e.target}</a>;
  return <>{e.target}</>;
}

/** `-` is the key of a proxy that asks for none. */
function who(e: AuditEntry): string {
  if (e.name) return e.name === "-" ? "somebody without a key" : e.name;
  return e.key === "-" ? "somebody without a key" : (e.key ?? "this machine");
}

const COLUMNS: Column<AuditEntry>[] = [
  { name: "action", cell: (e) => words(e.action) },
  { name: "target", title: "what", wide: true, cell: target },
  { name: "who", cell: who },
  { name: "key", cell: (e) => (e.key === "-" ? "" : (e.key ?? "")) },
  { name: "detail", wide: true, cell: (e) => Object.entries(e.detail).map(([k, v]) => `${k}: ${textOf(v)}`).join(", ") },
  { name: "at", title: "when", num: true, cell: (e) => <Time at={e.at} /> },
];

export function Audit({ place }: { place: Place }): JSX.Element {
  const { action } = place.query;
  const pages = usePages<AuditEntry>(
    (cursor) => withQuery("/audit", { action, cursor, limit: 200 }),
    (answer) => ({ rows: (answer as AuditPage).entries, next: (answer as AuditPage).next }),
    (e) => e.id,
    ["adapter", "reward", "episode", "step"],
  );
  return (
    <>
      <h1>Audit</h1>
      <Refused error={pages.error} />
      <div class="filters">
        <Field label="action">
          <select name="action" value={action ?? ""} onChange={(e) => change(place, { action: e.currentTarget.value || null }, true)}>
            <option value="">all</option>
            {ACTIONS.map((a) => (
              <option key={a} value={a}>
                {words(a)}
              </option>
            ))}
          </select>
        </Field>
      </div>
      <Stopped why={pages.stopped} again={pages.loadMore} />
      {pages.rows.length || pages.loading ? (
        <VirtualTable
          label="Changes by hand"
          columns={COLUMNS}
          rows={pages.rows}
          idOf={(e) => e.id}
          onEnd={pages.more && !pages.stopped ? pages.loadMore : undefined}
          busy={pages.loading}
        />
      ) : pages.error ? null : (
        <div class="empty">
          <p>Nothing was changed by hand{action ? " in this way" : ""}.</p>
        </div>
      )}
    </>
  );
}
