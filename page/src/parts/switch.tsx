// Pause and resume training, and write a note on the time axis.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ApiError, post } from "../api";
import { useAsk } from "../data";
import { tell } from "../live";
import { useMay } from "../may";
import type { Paused } from "../types";
import { Lacks, Mark, Refused, Time } from "./ui";

export function Switch(): JSX.Element {
  const [pauses, notes] = [useMay("trainer"), useMay("trainer", "grade")];
  const { data, reload } = useAsk<Paused>("/training/paused", ["status", "step"]);
  const [text, setText] = useState("");
  const [error, setError] = useState<ApiError | null>(null);
  const act = async (path: string, body: unknown): Promise<boolean> => {
    setError(null);
    try {
      await post<unknown>(path, body);
      reload();
      tell("step");
      return true;
    } catch (e) {
      setError(e instanceof ApiError ? e : new ApiError(0, (e as Error).message));
      return false;
    }
  };
  const annotate = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (text.trim() && (await act("/annotations", { text: text.trim() }))) setText("");
  };
  return (
    <>
      <form class="row" onSubmit={(e) => void annotate(e)}>
        {data?.paused ? (
          <>
            <Mark kind="bad">
              training is paused{data.by && data.by !== "-" ? ` by ${data.by}` : ""} <Time at={data.since} />
              {data.reason ? `: ${data.reason}` : ""}
            </Mark>
            {pauses ? (
              <button type="button" onClick={() => void act("/training/resume", {})}>
                Resume training
              </button>
            ) : null}
          </>
        ) : !pauses ? null : (
          <button type="button" disabled={!data} onClick={() => void act("/training/pause", { reason: text.trim() || null })}>
            Pause training
          </button>
        )}
        {notes ? (
          <>
            <input name="annotation" aria-label="Note, or the reason of a pause" placeholder="a note, or the reason of a pause" value={text} onInput={(e) => setText(e.currentTarget.value)} />
            <button disabled={!text.trim()}>Note it on the time axis</button>
          </>
        ) : (
          <Lacks scope="trainer" to="pause training and write notes" />
        )}
      </form>
      <Refused error={error} />
    </>
  );
}
