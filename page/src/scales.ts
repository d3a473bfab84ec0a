// From figures to places and colours. A few outliers never set the scale: the scale follows the bulk of the values.

/** `share` of the sorted values lie at or below it, between 0 and 1. */
export function quantile(sorted: number[], share: number): number {
  if (!sorted.length) return NaN;
  const place = share * (sorted.length - 1);
  const low = Math.floor(place);
  const from = sorted[low] as number;
  return from + ((sorted[Math.min(low + 1, sorted.length - 1)] as number) - from) * (place - low);
}

export interface Range {
  low: number;
  high: number;
  /** Values beyond the range, which the chart draws at its edge and counts in words. */
  clipped: number;
}

/** The range that a chart shows: all values, but those far beyond the quartiles (Tukey's far fences). */
export function rangeOf(values: (number | null | undefined)[], include: number[] = []): Range {
  const known = values.filter((v): v is number => typeof v === "number" && Number.isFinite(v)).sort((a, b) => a - b);
  if (!known.length) return { low: Math.min(0, ...include), high: Math.max(1, ...include), clipped: 0 };
  let low = known[0] as number;
  let high = known.at(-1) as number;
  let clipped = 0;
  if (known.length >= 8) {
    const lower = quantile(known, 0.25);
    const upper = quantile(known, 0.75);
    // where more than half of the values are equal the quartiles say nothing: take the outer tenths
    const spread = upper - lower || quantile(known, 0.95) - quantile(known, 0.05);
    if (spread > 0) {
      const inside = known.filter((v) => v >= lower - 3 * spread && v <= upper + 3 * spread);
      clipped = known.length - inside.length;
      low = inside[0] ?? low;
      high = inside.at(-1) ?? high;
    }
  }
  low = Math.min(low, ...include);
  high = Math.max(high, ...include);
  if (low === high) {
    const pad = Math.abs(low) * 0.1 || 1;
    return { low: low - pad, high: high + pad, clipped };
  }
  const pad = (high - low) * 0.05;
  return { low: low - pad, high: high + pad, clipped };
}

/** Places of things on an axis by their order, so that a jump in the numbers (@5, @90) takes one step. */
export function ordinal(values: number[]): Map<number, number> {
  return new Map([...new Set(values)].sort((a, b) => a - b).map((value, n) => [value, n]));
}

export function clamp(value: number, low: number, high: number): number {
  return Math.min(high, Math.max(low, value));
}

/** The class of a token's colour: five steps up (blue), five down (orange), none near the middle. */
export function shade(value: number | null | undefined, full: number): string {
  if (value === null || value === undefined || !Number.isFinite(value) || value === 0) return "";
  const step = Math.min(5, Math.ceil((Math.abs(value) / full) * 5));
  return `${value > 0 ? "up" : "down"}-${step}`;
}

/** A log-probability as a shade: sure ones have none, the less likely the stronger. */
export function shadeLogprob(logprob: number | null | undefined): string {
  return logprob === null || logprob === undefined ? "" : shade(Math.min(0, logprob + 0.05), 5);
}
