// The learning curve: mean reward or success with its 95 % interval, by adapter or over time.

import type { JSX } from "preact";
import { withQuery } from "../api";
import { useAsk } from "../data";
import { linesOf, versionOf } from "../learning";
import { NO_ADAPTER } from "../names";
import type { LearningAnswer } from "../types";
import { Chart } from "./chart";
import { Refused } from "./ui";

/** Live, control and held-out runs by adapter. */
export function LearningCurve(): JSX.Element {
  return <Lines by="adapter" what="mean" each="role" filters={{}} none="No rewards yet." include={[0, 1]} />;
}

export function short(adapter: string): string {
  const version = versionOf(adapter);
  return version ? `@${version}` : adapter === NO_ADAPTER ? "none" : adapter ? "base" : "";
}

/** Any series of `GET learning`. */
export function Lines(props: {
  by: "adapter" | "time";
  what: "mean" | "success";
  each?: string;
  filters: Record<string, string>;
  marks?: { x: number; name: string }[];
  /** What stands there where no run has a reward. */
  none?: string;
  include?: number[];
}): JSX.Element {
  const { by, what, each, filters } = props;
  const { data, error } = useAsk<LearningAnswer>(withQuery("/learning", { by, each, ...filters }), ["reward", "adapter"]);
  if (error) return <Refused error={error} />;
  if (!data) return <div class="chart-to-come" />;
  if (!data.points.length) return <p class="soft">{props.none ?? "No rewarded episode matches."}</p>;
  const curve = linesOf(data, by, what);
  const name = what === "mean" ? "Mean reward" : `Share of episodes with a reward of ${data.success_from} or more`;
  return (
    <>
      <Chart
        label={`${name} by ${by}, with 95 % intervals`}
        xs={curve.xs}
        series={curve.series}
        time={by === "time"}
        include={props.include ?? (what === "success" ? [0, 1] : [])}
        marks={by === "time" ? props.marks : undefined}
        xName={(x) => short(curve.names[x] ?? "")}
      />
      {data.left_out ? <p class="small soft">{data.left_out} smaller series are left out.</p> : null}
    </>
  );
}
