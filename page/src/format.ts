// How numbers and times look, in one place.

const UNITS: [number, Intl.RelativeTimeFormatUnit][] = [
  [60, "second"],
  [3600, "minute"],
  [86_400, "hour"],
  [86_400 * 30, "day"],
  [86_400 * 365, "month"],
  [Infinity, "year"],
];
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "narrow" });
const SIZES: Partial<Record<Intl.RelativeTimeFormatUnit, number>> = {
  second: 1,
  minute: 60,
  hour: 3600,
  day: 86_400,
  month: 86_400 * 30,
  year: 86_400 * 365,
};

/** `at`, `now`: seconds since the epoch. */
export function ago(at: number, now: number): string {
  const seconds = at - now;
  const size = Math.abs(seconds);
  if (size < 2) return "now";
  const [, unit] = UNITS.find(([limit]) => size < limit) ?? [0, "year" as const];
  return relative.format(Math.trunc(seconds / (SIZES[unit] ?? 1)), unit);
}

export function exact(at: number): string {
  return new Date(at * 1000).toLocaleString("en-GB", {
    year: "numeric",
    month: "short",
    day: "numeric",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    timeZoneName: "short",
  });
}

/** For machines; empty where a clock was so wrong that no date is at that time. */
export function iso(at: number): string {
  const date = new Date(at * 1000);
  return Number.isNaN(date.getTime()) ? "" : date.toISOString();
}

/** Seconds as people say them: `420 ms`, `3.2 s`, `5 min`. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 100) return `${number(seconds, 2)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 86_400 * 2) return `${number(seconds / 3600, 2)} h`;
  return `${Math.round(seconds / 86_400)} d`;
}

/** Up to `digits` digits that count; 12,345 with commas; `–` where there is none. */
export function number(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return value.toLocaleString("en");
  if (size >= 1e6) return value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: digits });
  if (size !== 0 && size < 1e-4) return value.toExponential(Math.max(0, digits - 1));
  return value.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, Math.floor(size).toString().length) });
}

/** A mean or share with its 95 % interval: `0.891 (0.85 to 0.93)`. */
export function between(value: number, low: number, high: number): string {
  // beside 0.34 a bound of 0.00022 says no more than 0.00, and takes the room of the count behind it
  const end = (bound: number): string => fixed(high - low > 0.05 && Math.abs(bound) < 0.01 ? 0 : bound, 2);
  return `${fixed(value)} (${end(low)} to ${end(high)})`;
}

/** With so many decimals, so that the numbers of a column stand below each other. */
export function fixed(value: number | null | undefined, decimals = 3): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6 || (size !== 0 && size < 10 ** -decimals)) return number(value);
  return value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

export function signed(value: number | null | undefined, digits = 3): string {
  const text = number(value, digits);
  return value !== null && value !== undefined && value > 0 ? `+${text}` : text.replace("-", "−");
}

export function percent(share: number | null | undefined): string {
  return share === null || share === undefined ? "–" : `${number(share * 100, 3)} %`;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${number(count)} ${count === 1 ? one : many}`;
}

export function words(name: string): string {
  return name.replaceAll("_", " ");
}
