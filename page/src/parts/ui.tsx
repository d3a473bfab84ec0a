import type { ComponentChildren, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { ApiError } from "../api";
import { useNow } from "../data";
import { ago, exact, fixed, iso, number, plural, signed, words } from "../format";
import type { Episode } from "../types";

/** A time: relative, the exact one on hover. `at`: seconds since the epoch. */
export function Time({ at }: { at: number | null | undefined }): JSX.Element {
  const now = useNow();
  if (at === null || at === undefined) return <span class="soft">–</span>;
  return (
    <time dateTime={iso(at)} title={exact(at)}>
      {ago(at, now)}
    </time>
  );
}

export function Num({ value, unit, sign, column }: {
  value: number | null | undefined;
  unit?: string;
  sign?: boolean;
  /** It stands in a column of such numbers: they all have the same decimals. */
  column?: boolean;
}): JSX.Element {
  return (
    <span class="num" title={value === null || value === undefined ? undefined : String(value)}>
      {column ? `${sign && (value ?? 0) > 0 ? "+" : ""}${fixed(value).replace("-", "−")}` : sign ? signed(value) : number(value)}
      {unit && value !== null && value !== undefined ? <span class="unit"> {unit}</span> : null}
    </span>
  );
}

export function Mark({ kind, children }: { kind: string; children: ComponentChildren }): JSX.Element {
  return <span class={`mark ${kind}`}>{children}</span>;
}

const END = 10;

/** A name whose end tells it from others: where there is no room, its middle goes. */
export function Ends({ text }: { text: string }): JSX.Element {
  if (text.length <= 2 * END) return <>{text}</>;
  return <span class="ends"><span>{text.slice(0, -END)}</span><span>{text.slice(-END)}</span></span>;
}

/** How a run stands. One that failed is no run of any mean. `whole`: with its error. */
export function Outcome({ of, whole }: { of: Pick<Episode, "state" | "error">; whole?: boolean }): JSX.Element {
  return of.error ? <Mark kind="bad">failed{whole ? `: ${of.error}` : ""}</Mark> : <>{words(of.state)}</>;
}

export function Card(props: {
  name: string;
  value: ComponentChildren;
  note?: ComponentChildren;
  kind?: "good" | "bad" | undefined;
}): JSX.Element {
  return (
    <div class={`card ${props.kind ?? ""}`}>
      <div class="name">{props.name}</div>
      <div class="value">{props.value}</div>
      {props.note ? <div class="note">{props.note}</div> : null}
    </div>
  );
}

/** A refused request, in words, where it was made. */
export function Refused({ error }: { error: ApiError | null }): JSX.Element | null {
  if (!error) return null;
  return (
    <p class="problem" role="alert">
      <Said text={error.message} />
      {error.fix ? <> – <Said text={error.fix} /></> : null}
    </p>
  );
}

/** Why a list goes no further, with the way on. */
export function Stopped({ why, again }: { why: string | null; again: () => void }): JSX.Element | null {
  if (!why) return null;
  return (
    <p class="problem" role="alert">
      The next rows did not come: {why}{" "}
      <button type="button" onClick={again}>
        Ask again
      </button>
    </p>
  );
}

/** A sentence of the proxy's. What stands in backticks is a command or a name to type. */
export function Said({ text }: { text: string }): JSX.Element {
  return <>{text.split("`").map((part, n) => (n % 2 ? <code key={n}>{part}</code> : part))}</>;
}

export function Facts({ facts }: { facts: [string, ComponentChildren][] }): JSX.Element {
  return (
    <dl class="facts">
      {facts
        .filter(([, value]) => value !== null && value !== undefined && value !== "")
        .map(([name, value]) => [<dt key={`${name}-name`}>{name}</dt>, <dd key={name}>{value}</dd>])}
    </dl>
  );
}

/** In place of what this key may not do. */
export function Lacks({ scope, to }: { scope: string; to: string }): JSX.Element {
  return <p class="small soft">To {to} takes a key with the scope {scope}. This one can look.</p>;
}

/** Copies a text; says so. */
export function Copy({ text, label = "Copy" }: { text: string; label?: string }): JSX.Element {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return;
    const timer = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  return (
    <button type="button" onClick={() => void navigator.clipboard?.writeText(text).then(() => setDone(true))}>
      {done ? "Copied" : label}
    </button>
  );
}

/** A field of a form that says its own mistake. */
export function Field(props: {
  label: string;
  error?: string | null;
  kind?: string;
  children: ComponentChildren;
}): JSX.Element {
  return (
    <label class={`field ${props.kind ?? ""}`}>
      <span>{props.label}</span>
      {props.children}
      {props.error ? (
        <span class="problem" role="alert">
          {props.error}
        </span>
      ) : null}
    </label>
  );
}

/** The lines of a text that hold what is looked for, each with its number. */
export function linesWith(text: string, find: string, most = 200): string {
  const wanted = find.toLowerCase();
  const found = text.split("\n").flatMap((line, n) => (line.toLowerCase().includes(wanted) ? [`${n + 1}: ${line}`] : []));
  if (!found.length) return "no line holds this";
  return found.slice(0, most).join("\n") + (found.length > most ? `\n… and ${plural(found.length - most, "more line")}` : "");
}

/** A text that may be long: its beginning, the rest on demand, and a search in it. Each text has its own direction. */
export function Long({ text, limit = 4000 }: { text: string; limit?: number }): JSX.Element {
  const [shown, setShown] = useState(limit);
  const [find, setFind] = useState("");
  if (text.length <= limit) return <pre dir="auto">{text}</pre>;
  const search = (
    <input type="search" placeholder={`find in ${number(text.length / 1000)} kB`} aria-label="Find in this text" value={find} onInput={(e) => setFind(e.currentTarget.value)} />
  );
  if (find)
    return (
      <>
        {search}
        <pre dir="auto">{linesWith(text, find)}</pre>
      </>
    );
  if (text.length <= shown)
    return (
      <>
        {search}
        <pre dir="auto">{text}</pre>
      </>
    );
  return (
    <>
      {search}
      <pre dir="auto">{text.slice(0, shown)}…</pre>
      <button type="button" onClick={() => setShown(Math.max(shown * 8, 64_000))}>
        Show more ({number((text.length - shown) / 1000)} kB left)
      </button>
    </>
  );
}
