import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { exact, words } from "../format";
import { place } from "../lineage";
import type { Adapter } from "../types";
import { short } from "./curve";

const WIDTH = 1000;
const LANE = 46;
const SHAPES: Record<Adapter["state"], { mark: string; colour: string }> = {
  live: { mark: "●", colour: "live" },
  candidate: { mark: "◐", colour: "candidate" },
  loading: { mark: "◐", colour: "candidate" },
  retired: { mark: "○", colour: "ink-soft" },
  rolled_back: { mark: "✕", colour: "refused" },
  refused: { mark: "✕", colour: "refused" },
};

export function LineageChart(props: {
  adapters: Adapter[];
  chosen: string | null;
  onChoose: (name: string) => void;
}): JSX.Element {
  const placed = place(props.adapters.slice(0, 120));
  const lanes = Math.max(1, ...placed.map((p) => p.lane + 1));
  const x = (share: number): number => 30 + share * (WIDTH - 80);
  const y = (lane: number): number => 26 + lane * LANE;
  const first = placed[0]?.adapter;
  const last = placed.at(-1)?.adapter;
  const every = Math.ceil(placed.length / 24);
  const box = useRef<HTMLDivElement>(null);
  const seen = placed.find((p) => p.adapter.name === props.chosen) ?? placed.at(-1);
  // on a phone the axis is wider than the screen
  useEffect(() => {
    const element = box.current;
    if (element && seen) element.scrollLeft = (x(seen.x) / WIDTH) * element.scrollWidth - element.clientWidth / 2;
  }, [seen?.adapter.name, seen?.x]);
  return (
    <div class="lineage time" ref={box} tabIndex={0} role="region" aria-label="Lineage">
      <svg viewBox={`0 0 ${WIDTH} ${lanes * LANE + 34}`} role="group" aria-label="Lineage of the adapters over time">
        <line class="axis" x1={20} x2={WIDTH - 20} y1={lanes * LANE + 12} y2={lanes * LANE + 12} />
        {placed.map((p) =>
          p.parent ? (
            <path
              key={`${p.adapter.name}-edge`}
              class="edge"
              d={`M ${x(p.parent.x)} ${y(p.parent.lane)} C ${(x(p.parent.x) + x(p.x)) / 2} ${y(p.parent.lane)}, ${(x(p.parent.x) + x(p.x)) / 2} ${y(p.lane)}, ${x(p.x)} ${y(p.lane)}`}
            />
          ) : null,
        )}
        {placed.map((p, n) => {
          const { mark, colour } = SHAPES[p.adapter.state];
          const chosen = p.adapter.name === props.chosen;
          return (
            <a
              key={p.adapter.name}
              href={`#/adapters?adapter=${encodeURIComponent(p.adapter.name)}`}
              aria-label={`${p.adapter.name}, ${words(p.adapter.state)}, made ${exact(p.adapter.created)}`}
              onClick={(e) => {
                e.preventDefault();
                props.onChoose(p.adapter.name);
              }}
            >
              <circle cx={x(p.x)} cy={y(p.lane)} r={chosen ? 13 : 10} fill="var(--bg)" stroke={chosen ? "var(--accent)" : "var(--line)"} stroke-width={chosen ? 3 : 1} />
              <text x={x(p.x)} y={y(p.lane) + 5} text-anchor="middle" style={{ fill: `var(--${colour})`, fontSize: "15px" }}>
                {mark}
              </text>
              {n % every === 0 || chosen || p.adapter.state === "live" ? (
                <text x={x(p.x)} y={y(p.lane) + 25} text-anchor="middle">
                  {short(p.adapter.name)}
                </text>
              ) : null}
            </a>
          );
        })}
        {first ? (
          <text x={20} y={lanes * LANE + 28}>
            {exact(first.created)}
          </text>
        ) : null}
        {last && last !== first ? (
          <text x={WIDTH - 20} y={lanes * LANE + 28} text-anchor="end">
            {exact(last.created)}
          </text>
        ) : null}
      </svg>
    </div>
  );
}
