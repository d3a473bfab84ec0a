// What people said of a run, and who is to label it. A comment is no reward: nothing learns from it.

import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { ApiError, post, withQuery } from "../api";
import { useAsk } from "../data";
import { plural } from "../format";
import { useKeys } from "../keyboard";
import { tell } from "../live";
import { useMay } from "../may";
import type { Comments as Said } from "../types";
import { Field, Refused, Time } from "./ui";

/** `fold`: they are one of many things of a run, and fold away where there is none. */
export function Comments({ episode, owner, fold }: { episode: string; owner: string; fold?: boolean }): JSX.Element {
  const path = withQuery(`/episodes/${encodeURIComponent(episode)}/comments`, { key: owner });
  const { data, reload } = useAsk<Said>(path, ["reward"]);
  const says = useMay("grade");
  const [text, setText] = useState("");
  const [to, setTo] = useState<string | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const form = useRef<HTMLFormElement>(null);
  useKeys({ a: () => form.current?.querySelector<HTMLInputElement>("[name=assign]")?.focus() });
  const assigned = data?.assigned ?? "";
  const moved = to !== null && to.trim() !== assigned;
  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    setError(null);
    try {
      await post<Said>(path, { ...(text.trim() ? { text: text.trim() } : {}), ...(moved ? { to: to.trim() } : {}) });
      setText("");
      setTo(null);
      (document.activeElement as HTMLElement | null)?.blur();
      reload();
      if (moved) tell("reward");
    } catch (e) {
      setError(e instanceof ApiError ? e : new ApiError(0, (e as Error).message));
    }
  };
  const shown = (
    <section aria-label="Comments">
      {data?.comments.map((c) => (
        <p class="small" key={c.id}>
          <strong>{c.by ?? "somebody"}</strong> <Time at={c.at} />
          {c.to === null ? null : c.to ? ` assigned it to ${c.to}` : " took the assignment back"}
          {c.text ? <>: {c.text}</> : null}
        </p>
      ))}
      {says ? (
        <form class="row comment" ref={form} onSubmit={(e) => void send(e)}>
          <Field label="to be labelled by" kind="narrow">
            <input name="assign" placeholder="nobody" value={to ?? assigned} onInput={(e) => setTo(e.currentTarget.value)} />
          </Field>
          <Field label="comment" kind="wide">
            <input name="comment" value={text} onInput={(e) => setText(e.currentTarget.value)} />
          </Field>
          <button disabled={!moved && !text.trim()}>{moved && text.trim() ? "Assign and comment" : moved ? "Assign" : "Comment"}</button>
        </form>
      ) : null}
      <Refused error={error} />
    </section>
  );
  if (!fold) return shown;
  return (
    <details class={data?.comments.length ? "panel" : "small"} open={!!data?.comments.length}>
      <summary>{plural(data?.comments.length ?? 0, "comment")}{assigned ? `, to be labelled by ${assigned}` : ""}</summary>
      {shown}
    </details>
  );
}
