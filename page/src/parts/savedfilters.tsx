// The saved filters above the episodes: a link each, and a field that saves the ones in use.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Filters } from "../filters";
import { link } from "../route";
import { MOST_NAME_CHARS, readSaved, type Saved, withoutSaved, withSaved, writeSaved } from "../saved";

export function SavedFilters({ filters }: { filters: Filters }): JSX.Element | null {
  const [saved, setSaved] = useState(() => readSaved(localStorage));
  const [name, setName] = useState("");
  const [refused, setRefused] = useState(false);
  const used = Object.fromEntries(Object.entries(filters).filter((part): part is [string, string] => Boolean(part[1])));
  const keep = (next: Saved): void => {
    setRefused(!writeSaved(localStorage, next));
    setSaved(next);
  };
  const save = (event: Event): void => {
    event.preventDefault();
    if (!name.trim()) return;
    keep(withSaved(readSaved(localStorage), name.trim(), used));
    setName("");
  };
  const names = Object.keys(saved);
  if (!names.length && !Object.keys(used).length) return null;
  return (
    <div class="row small saved">
      {names.length ? (
        <ul class="plain row" aria-label="Saved filters">
          {names.map((one) => (
            <li key={one} class="tag">
              <a href={link("episodes", "", saved[one])}>{one}</a>{" "}
              <button type="button" class="plain" aria-label={`Forget the filters ${one}`} onClick={() => keep(withoutSaved(readSaved(localStorage), one))}>
                ×
              </button>
            </li>
          ))}
        </ul>
      ) : null}
      {Object.keys(used).length ? (
        <form class="row" onSubmit={save}>
          <input
            name="saved_name"
            aria-label="Name of these filters"
            placeholder="name of these filters"
            maxLength={MOST_NAME_CHARS}
            value={name}
            onInput={(e) => setName(e.currentTarget.value)}
          />
          <button>Save</button>
        </form>
      ) : null}
      {refused ? <span role="status">This browser blocks storage: filters are lost when the tab closes.</span> : null}
    </div>
  );
}
