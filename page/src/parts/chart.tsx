// Lines over adapters or over time, by uPlot: intervals as bars, outliers at the edge and counted in words.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { exact, number } from "../format";
import { clamp, type Range, rangeOf } from "../scales";

export interface Series {
  name: string;
  /** A colour of the design system: `live`, `control`, `heldout`, `candidate`, `refused`, `series-6`. */
  colour: string;
  ys: (number | null)[];
  /** Between what the true values lie. */
  intervals?: ([number, number] | null)[];
  counts?: (number | null)[];
  dashed?: boolean;
}

export interface ChartProps {
  label: string;
  xs: number[];
  series: Series[];
  time?: boolean;
  /** What stands below the axis at a place; times where `time` is set. */
  xName?: (x: number) => string;
  unit?: string;
  include?: number[];
  height?: number;
  /** Lines across at such times, with a word each: swaps, notes. */
  marks?: { x: number; name: string }[];
}

/** What the chart's height must hold: the values, and their intervals. */
function extent(shown: Series[], include: number[] | undefined): Range {
  const ends = shown.flatMap((s) => (s.intervals ?? []).flatMap((i) => i ?? []));
  return rangeOf([...shown.flatMap((s) => s.ys), ...ends], include);
}

const DAY = "\n{D} {MMM}";
const SECONDS = ["\n{D} {MMM} {HH}:{mm}", null, "\n{D} {MMM} {HH}:{mm}", null, "\n{HH}:{mm}", null, 1];
/** How uPlot writes times: for ticks so many seconds apart, and what is added where year, month, day, hour … begin. */
const TIMES: uPlot.Axis.Values = [
  [86_400 * 365, "{YYYY}", null, null, null, null, null, null, 1],
  [86_400 * 28, "{MMM}", "\n{YYYY}", null, null, null, null, null, 1],
  [86_400, "{D} {MMM}", "\n{YYYY}", null, null, null, null, null, 1],
  [60, "{HH}:{mm}", DAY, null, "\n{D} {MMM}", null, null, null, 1],
  [1, ":{ss}", ...SECONDS],
  [0.001, ":{ss}.{fff}", ...SECONDS],
];

function css(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function drawErrors(u: uPlot, series: Series[], hidden: ReadonlySet<string>): void {
  const { ctx } = u;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  for (const one of series) {
    if (hidden.has(one.name) || !one.intervals) continue;
    ctx.strokeStyle = css(one.colour);
    one.intervals.forEach((ends, n) => {
      const x = u.data[0][n];
      const y = one.ys[n];
      if (ends === null || y === null || x === undefined || y === undefined) return;
      const at = u.valToPos(x, "x", true);
      const [low, high] = ends.map((v) =>
        u.valToPos(clamp(v, u.scales.y?.min ?? v, u.scales.y?.max ?? v), "y", true),
      ) as [number, number];
      const wing = 3 * devicePixelRatio;
      ctx.beginPath();
      ctx.moveTo(at, low);
      ctx.lineTo(at, high);
      for (const end of [low, high]) {
        ctx.moveTo(at - wing, end);
        ctx.lineTo(at + wing, end);
      }
      ctx.stroke();
    });
  }
  ctx.restore();
}

function drawMarks(u: uPlot, marks: { x: number; name: string }[]): void {
  const { ctx } = u;
  ctx.save();
  ctx.strokeStyle = css("line-strong");
  ctx.fillStyle = css("ink-soft");
  ctx.font = `${10 * devicePixelRatio}px sans-serif`;
  ctx.textBaseline = "alphabetic";
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  let labelled = -Infinity;
  for (const { x, name } of marks) {
    const at = u.valToPos(x, "x", true);
    if (at < u.bbox.left || at > u.bbox.left + u.bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(at, u.bbox.top);
    ctx.lineTo(at, u.bbox.top + u.bbox.height);
    ctx.stroke();
    if (at - labelled < 60 * devicePixelRatio) continue;
    // uPlot leaves its axes' alignment behind; near the right edge the word stands before its line
    const ends = at + 100 * devicePixelRatio > u.bbox.left + u.bbox.width;
    ctx.textAlign = ends ? "right" : "left";
    ctx.fillText(name.slice(0, 18), at + (ends ? -3 : 3) * devicePixelRatio, u.bbox.top + 10 * devicePixelRatio);
    labelled = at;
  }
  ctx.restore();
}

/** Pixels. A chart has its height before it is drawn, so that nothing below it moves. */
const HEIGHT = 220;

type Zoom = { min: number; max: number } | null;

function options(
  props: ChartProps,
  hidden: ReadonlySet<string>,
  width: number,
  tip: (text: string) => void,
  zoom: { current: Zoom },
): uPlot.Options {
  const { series, unit } = props;
  const shown = series.filter((s) => !hidden.has(s.name));
  const range = extent(shown, props.include);
  const name = props.time ? exact : (props.xName ?? ((x: number) => number(x)));
  const axis = {
    stroke: css("ink-soft"),
    grid: { stroke: css("line"), width: 1 },
    ticks: { stroke: css("line"), width: 1 },
    font: "11px sans-serif",
  };
  const xLow = props.xs[0] ?? 0;
  const xHigh = props.xs.at(-1) ?? 1;
  const pad = xHigh > xLow ? (xHigh - xLow) * 0.02 : props.time ? 30 : 0.5;
  return {
    width,
    height: props.height ?? HEIGHT,
    legend: { show: false },
    cursor: { drag: { x: true, y: false }, points: { size: 8 } },
    scales: {
      x: { time: props.time ?? false, range: (_, low, high) => (low === xLow && high === xHigh ? [low - pad, high + pad] : [low, high]) },
      y: { range: [range.low, range.high] },
    },
    axes: [
      {
        ...axis,
        ...(props.time ? { values: TIMES } : { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000], values: (_: uPlot, ticks: number[]) => ticks.map((t) => (Number.isInteger(t) ? name(t) : "")) }),
      },
      { ...axis, size: 58, space: 22, values: (_, ticks) => ticks.map((t) => number(t)) },
    ],
    series: [
      {},
      ...series.map((s) => ({
        label: s.name,
        show: !hidden.has(s.name),
        stroke: css(s.colour),
        width: 2,
        spanGaps: true,
        points: { show: props.xs.length < 200, size: 6, fill: css(s.colour) },
        ...(s.dashed ? { dash: [6, 4] } : {}),
      })),
    ],
    hooks: {
      // what somebody looks at closely stays, while the chart is drawn anew with each new value
      setSelect: [(u) => (zoom.current = u.select.width > 0 ? { min: u.posToVal(u.select.left, "x"), max: u.posToVal(u.select.left + u.select.width, "x") } : zoom.current)],
      ready: [(u) => u.over.addEventListener("dblclick", () => (zoom.current = null))],
      draw: [(u) => drawErrors(u, series, hidden), (u) => drawMarks(u, props.marks ?? [])],
      setCursor: [
        (u) => {
          const n = u.cursor.idx;
          if (n === null || n === undefined) return tip("");
          const parts = shown.flatMap((s) => {
            const y = s.ys[n];
            if (y === null || y === undefined) return [];
            const ends = s.intervals?.[n];
            const count = s.counts?.[n];
            return [
              `${s.name} ${number(y)}${unit ? ` ${unit}` : ""}` +
                (ends ? ` (${number(ends[0])} to ${number(ends[1])})` : "") +
                (count === null || count === undefined ? "" : ` (n = ${number(count)})`),
            ];
          });
          tip(`${name(props.xs[n] ?? 0)}: ${parts.join(" · ")}`);
        },
      ],
    },
  };
}

export function Chart(props: ChartProps): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const [tip, setTip] = useState("");
  const [theme, setTheme] = useState(0);
  const zoom = useRef<Zoom>(null);
  const shown = props.series.filter((s) => !hidden.has(s.name));
  const range = extent(shown, props.include);
  const outside = shown.flatMap((s) => s.ys).filter((y) => y !== null && (y < range.low || y > range.high)).length;
  useEffect(() => {
    const observer = new MutationObserver(() => setTheme((n) => n + 1));
    observer.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    return () => observer.disconnect();
  }, []);
  const drawn = JSON.stringify([props.xs, props.series, props.marks]);
  useEffect(() => {
    const element = box.current;
    if (!element || !props.xs.length) return;
    const data: uPlot.AlignedData = [
      props.xs,
      ...props.series.map((s) => s.ys.map((y) => (y === null ? null : clamp(y, range.low, range.high)))),
    ];
    const plot = new uPlot(options(props, hidden, Math.max(200, element.clientWidth), setTip, zoom), data, element);
    if (zoom.current) plot.setScale("x", zoom.current);
    const observer = new ResizeObserver(() => {
      const width = Math.max(200, element.clientWidth);
      if (width !== plot.width) plot.setSize({ width, height: props.height ?? HEIGHT });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.destroy();
    };
  }, [drawn, hidden, theme]);
  const toggle = (name: string): void => {
    const next = new Set(hidden);
    if (!next.delete(name)) next.add(name);
    setHidden(next);
  };
  return (
    <figure style={{ margin: 0 }}>
      <div class="chart" style={{ minHeight: `${props.height ?? HEIGHT}px` }} ref={box} role="img" aria-label={describe(props)} />
      <figcaption>
        {props.series.length > 1 ? (
          <div class="legend">
            {props.series.map((s) => (
              <button type="button" key={s.name} aria-pressed={!hidden.has(s.name)} onClick={() => toggle(s.name)}>
                <span aria-hidden="true" style={{ color: `var(--${s.colour})` }}>
                  {s.dashed ? "┅ " : "━ "}
                </span>
                {s.name}
              </button>
            ))}
          </div>
        ) : null}
        <div class="tip">
          {tip || (outside ? `${outside} outlying ${outside === 1 ? "value is" : "values are"} drawn at the edge` : "")}
        </div>
      </figcaption>
    </figure>
  );
}

/** What a chart shows, for those who do not see it. */
export function describe(props: ChartProps): string {
  const parts = props.series.map((s) => {
    const known = s.ys.filter((y): y is number => y !== null);
    return known.length ? `${s.name}: ${known.length} points, the last ${number(known.at(-1))}` : `${s.name}: none`;
  });
  return `${props.label}. ${parts.join("; ")}`;
}
