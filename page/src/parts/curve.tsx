// The learning curve: mean reward or success with its standard error, by adapter or over time.

import type { JSX } from "preact";
import { withQuery } from "../api";
import { useAsk } from "../data";
import { curveOf, linesOf, versionOf } from "../learning";
import type { LearningAnswer } from "../types";
import { Chart } from "./chart";
import { Refused } from "./ui";

interface Success {
  rows: { adapter: string; split: string; arm: string; episodes: number; mean: number; std: number }[];
}

/** Live, control and held-out runs by adapter. */
export function LearningCurve(): JSX.Element {
  const { data } = useAsk<Success>("/success", ["reward", "adapter"]);
  const points = (data?.rows ?? []).map((r) => ({
    ...r,
    version: versionOf(r.adapter),
    n: r.episodes,
    se: r.episodes > 1 ? r.std / Math.sqrt(r.episodes) : null,
  }));
  if (!data) return <div class="chart-to-come" />;
  if (!points.length) return <p class="soft">No rewards yet.</p>;
  const curve = curveOf(points);
  return (
    <Chart
      label="Mean reward by adapter, with standard errors"
      xs={curve.xs}
      series={curve.series}
      include={[0, 1]}
      xName={(x) => short(curve.names[x] ?? "")}
    />
  );
}

export function short(adapter: string): string {
  const version = versionOf(adapter);
  return version ? `@${version}` : adapter ? "base" : "";
}

/** Any series of `GET learning`. */
export function Lines(props: {
  by: "adapter" | "time";
  what: "mean" | "success";
  each?: string;
  filters: Record<string, string>;
  marks?: { x: number; name: string }[];
}): JSX.Element {
  const { by, what, each, filters } = props;
  const { data, error } = useAsk<LearningAnswer>(withQuery("/learning", { by, each, ...filters }), ["reward", "adapter"]);
  if (error) return <Refused error={error} />;
  if (!data) return <div class="chart-to-come" />;
  if (!data.points.length) return <p class="soft">No episode with a reward fits.</p>;
  const curve = linesOf(data, by, what);
  const name = what === "mean" ? "Mean reward" : `Share of episodes with a reward of ${data.success_from} or more`;
  return (
    <>
      <Chart
        label={`${name} by ${by}, with standard errors`}
        xs={curve.xs}
        series={curve.series}
        time={by === "time"}
        include={what === "success" ? [0, 1] : []}
        marks={by === "time" ? props.marks : undefined}
        xName={(x) => short(curve.names[x] ?? "")}
      />
      {data.left_out ? <p class="small soft">{data.left_out} smaller series are left out.</p> : null}
    </>
  );
}
