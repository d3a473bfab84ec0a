// A table that draws the rows in sight alone: 100,000 rows scroll as ten do. All rows are equally high.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

export interface Column<T> {
  name: string;
  /** Shown above the column; `name` if absent. */
  title?: string;
  num?: boolean;
  /** It holds sentences: it may be wider than a name. */
  wide?: boolean;
  /** The whole of it, shown on hover, where a cell may cut it off. */
  whole?: (row: T) => string | null;
  cell: (row: T) => ComponentChildren;
}

const ROW = 32;
const SPARE = 12;
/** Between the table's end and the window's, in pixels. */
const MARGIN = 24;

export function visible(top: number, height: number, count: number, row = ROW, spare = SPARE): [number, number] {
  const first = Math.max(0, Math.floor(top / row) - spare);
  return [Math.min(first, count), Math.min(count, Math.ceil((top + height) / row) + spare)];
}

export function VirtualTable<T>(props: {
  label: string;
  columns: Column<T>[];
  rows: T[];
  idOf: (row: T) => string;
  chosen?: string | null;
  onChoose?: (row: T) => void;
  onEnd?: () => void;
  busy?: boolean;
  total?: number;
}): JSX.Element {
  const { rows, columns, idOf, chosen, onChoose, onEnd } = props;
  const box = useRef<HTMLDivElement>(null);
  const [[top, height], setSight] = useState<[number, number]>([0, innerHeight]);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    // the window's height, not the box's: it is low before its rows come, and drawing them in two goes moves the columns
    const look = (): void => setSight([element.scrollTop, innerHeight]);
    const measure = (): void => {
      element.style.setProperty("--above", `${element.getBoundingClientRect().top + scrollY + MARGIN}px`);
      look();
    };
    measure();
    element.addEventListener("scroll", look, { passive: true });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => {
      element.removeEventListener("scroll", look);
      observer.disconnect();
    };
  }, []);
  const at = chosen === null || chosen === undefined ? -1 : rows.findIndex((row) => idOf(row) === chosen);
  useEffect(() => {
    const element = box.current;
    if (!element || at < 0) return;
    const y = at * ROW;
    if (y < element.scrollTop) element.scrollTop = y;
    else if (y + 2 * ROW > element.scrollTop + element.clientHeight) element.scrollTop = y + 2 * ROW - element.clientHeight;
  }, [at]);
  const [first, last] = visible(top, height, rows.length);
  useEffect(() => {
    if (onEnd && last >= rows.length - SPARE) onEnd();
  }, [last, rows.length, onEnd]);
  return (
    <div class={`scroll tall ${props.busy && !rows.length ? "to-come" : ""}`} ref={box} tabIndex={0} role="region" aria-label={props.label}>
      <table aria-rowcount={(props.total ?? rows.length) + 1} aria-busy={props.busy ?? false}>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.name} scope="col" class={column.num ? "num" : ""}>
                {column.title ?? column.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          <Spacer height={first * ROW} columns={columns.length} />
          {rows.slice(first, last).map((row, n) => {
            const id = idOf(row);
            return (
              <tr
                key={id}
                data-id={id}
                aria-rowindex={first + n + 2}
                class={id === chosen ? "chosen" : ""}
                onClick={() => onChoose?.(row)}
              >
                {columns.map((column) => (
                  <td key={column.name} class={column.num ? "num" : column.wide ? "wide" : ""} title={column.whole?.(row) ?? undefined}>
                    {column.cell(row)}
                  </td>
                ))}
              </tr>
            );
          })}
          <Spacer height={(rows.length - last) * ROW} columns={columns.length} />
        </tbody>
      </table>
    </div>
  );
}

function Spacer({ height, columns }: { height: number; columns: number }): JSX.Element | null {
  if (height <= 0) return null;
  return (
    <tr class="spacer" aria-hidden="true">
      <td colSpan={columns} style={{ height: `${height}px` }} />
    </tr>
  );
}
