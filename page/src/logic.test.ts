import { expect, test } from "vitest";
import { diff, facing } from "./diff";
import { fieldOf, mistakes, parseTime, toQuery } from "./filters";
import { ago, between, duration, exact, fixed, iso, number, signed } from "./format";
import { causesOf, funnelOf } from "./funnel";
import { step } from "./keyboard";
import { linesOf } from "./learning";
import { actions } from "./lineage";
import { EventParser } from "./live";
import { may } from "./may";
import { blocks, inlines, isMarked } from "./markdown";
import { errorText, read } from "./messages";
import { isImported, isMeasured, tagsOf, taskOf } from "./names";
import { printable } from "./printable";
import { link, parsePlace } from "./route";
import { readSaved, withoutSaved, withSaved, writeSaved } from "./saved";
import { ordinal, rangeOf, shade, shadeLogprob } from "./scales";
import { wayTo } from "./parts/gate";
import { visible } from "./parts/table";
import { linesWith } from "./parts/ui";
import type { Adapter, Json, Status } from "./types";
import { spanOf } from "./views/judge";

test("causes keep the proxy's order, and remarks stand apart", () => {
  const line = (cause: string, severity: "blocks" | "slows" | "remark") => ({ stage: "step", cause, count: 1, text: cause, fix: null, severity });
  const lines = [line("a", "blocks"), line("b", "slows"), line("c", "remark"), line("d", "slows")];
  const { troubles, remarks } = causesOf({ funnel: { lines } } as unknown as Status);
  expect([troubles.map((l) => l.cause), remarks.map((l) => l.cause)]).toEqual([["a", "b", "d"], ["c"]]);
});

test("saved filters survive whatever stands in the browser, and are bounded", () => {
  const kept = new Map<string, string>();
  const store = { getItem: (k: string) => kept.get(k) ?? null, setItem: (k: string, v: string) => void kept.set(k, v) };
  for (const wrong of ["{", "[]", "null", '{"a": 1, "b": {"task": 2}, "c": null}']) {
    kept.set("saved-filters", wrong);
    expect(readSaved(store)).toEqual({});
  }
  expect(writeSaved(store, withSaved({}, "failed ones", { outcome: "failed" }))).toBe(true);
  const again = withSaved(readSaved(store), "failed ones", { task: "t" });
  expect(again).toEqual({ "failed ones": { task: "t" } });
  expect(withoutSaved(again, "failed ones")).toEqual({});
  const many = Array.from({ length: 40 }, (_, n) => `f${n}`).reduce((all, name) => withSaved(all, name, { q: name }), {});
  expect(Object.keys(many)).toHaveLength(30);
  expect(Object.keys(many).at(-1)).toBe("f39");
  expect(writeSaved({ setItem: () => { throw new Error("full"); } }, {})).toBe(false);
});

test("one outlier does not set the scale, and is counted", () => {
  const range = rangeOf([1, 2, 3, 2, 1, 2, 3, 2, 1e9]);
  expect(range.high).toBeLessThan(4);
  expect(range.clipped).toBe(1);
  expect(rangeOf([0, 0, 0, 0, 0, 0, 0, 0, 5]).high).toBeGreaterThan(0);
  expect(rangeOf([]).low).toBe(0);
  expect(rangeOf([2, 2]).high).toBeGreaterThan(2);
});

test("what its replay refused a person may promote, what the engine refused nobody", () => {
  const refused = (outcome: string | null): Adapter => ({ state: "refused", files: true, gate: null, replay: outcome && { outcome } }) as unknown as Adapter;
  expect(actions(refused("refused"))).toEqual({ can: ["promote"], whyNot: null });
  expect(actions(refused("passed")).can).toEqual([]);
  expect(actions(refused(null)).whyNot).toContain("publish it again");
  expect(actions({ ...refused("refused"), files: false })).toEqual({ can: [], whyNot: "its files are gone" });
});

test("a clock that is out of all range breaks nothing", () => {
  expect(iso(0)).toBe("1970-01-01T00:00:00.000Z");
  expect(iso(1e15)).toBe("");
  expect(exact(1e15)).toBe("Invalid Date");
  expect(ago(1e15, 0)).not.toBe("");
});

test("the way to being taken back is logarithmic", () => {
  expect(wayTo(1, 100)).toBe(0);
  expect(wayTo(10, 100)).toBeCloseTo(0.5);
  expect([wayTo(0.2, 100), wayTo(1e9, 100), wayTo(5, 1)]).toEqual([0, 1, 0]);
});

test("a version numbered 90 takes one step of the axis", () => {
  expect([...ordinal([1, 2, 90, 3])]).toEqual([[1, 0], [2, 1], [3, 2], [90, 3]]);
  const row = (adapter: string, series: string) => ({
    adapter, series, version: 0, start: 0, end: 1, n: 4, mean: 0.5, se: null, low: 0.2, high: 0.8, success: 0.5, success_se: null, success_low: 0.2, success_high: 0.8,
  });
  const points = [row("m@90", "live"), row("m@2", "held-out"), row("m", "live"), row("m@1", "control")];
  const curve = linesOf({ points, bucket: null, success_from: 0.5, left_out: 0 }, "adapter", "mean");
  expect(curve.names).toEqual(["m", "m@1", "m@2", "m@90"]);
  expect(curve.xs).toEqual([0, 1, 2, 3]);
  expect(curve.series.map((s) => [s.name, s.colour])).toEqual([["live", "live"], ["held-out", "heldout"], ["control", "control"]]);
  expect(curve.series[0]?.intervals).toEqual([[0.2, 0.8], null, null, [0.2, 0.8]]);
});

test("shades have five steps each way", () => {
  expect(shade(0.1, 2)).toBe("up-1");
  expect(shade(-9, 2)).toBe("down-5");
  expect([shade(0, 2), shade(null, 2), shadeLogprob(-0.01)]).toEqual(["", "", ""]);
  expect(shadeLogprob(-8)).toBe("down-5");
});

test("a diff keeps every line of both sides, in order", () => {
  const [a, b] = [["x", "a", "b", "c", "z"], ["x", "b", "q", "c", "d", "z"]];
  const pairs = diff(a, b);
  expect(pairs.filter((p) => p.left !== null).map((p) => p.left)).toEqual(a);
  expect(pairs.filter((p) => p.right !== null).map((p) => p.right)).toEqual(b);
  expect(pairs.filter((p) => p.left !== null && p.right !== null).every((p) => p.left === p.right)).toBe(true);
  expect(pairs.filter((p) => p.left === p.right)).toHaveLength(4);
  const long = Array.from({ length: 5000 }, (_, n) => String(n));
  expect(diff(long, long.map((l) => `${l}!`))).toHaveLength(10_000);
});

test("lines in each other's place face each other", () => {
  expect(facing(diff(["a", "x", "y", "b"], ["a", "z", "b", "c"]))).toEqual([
    { left: "a", right: "a" },
    { left: "x", right: "z" },
    { left: "y", right: null },
    { left: "b", right: "b" },
    { left: null, right: "c" },
  ]);
});

test("what a key may do", () => {
  expect([may(null, []), may(["admin"], []), may(["viewer"], []), may(["viewer"], ["trainer"]), may(["trainer"], ["trainer", "grade"])]).toEqual([true, true, false, false, true]);
});

test("numbers of a column have the same decimals", () => {
  expect(between(0.01, 0.000217, 0.34)).toBe("0.010 (0.00 to 0.34)");
  expect(between(0.002, 0.0015, 0.0025)).toBe("0.002 (0.0015 to 0.0025)");
  expect([fixed(0.5), fixed(12), fixed(-0.25), fixed(0), fixed(0.00004), fixed(2e7), fixed(null)]).toEqual(["0.500", "12.000", "-0.250", "0.000", "4.00e-5", "20M", "–"]);
});

test("filters: times, mistakes, and what is asked", () => {
  expect(parseTime("2h", 10_000)).toBe(2800);
  expect(parseTime("2026-01-31", 0)).toBe(Date.parse("2026-01-31") / 1000);
  expect(parseTime("soon", 0)).toBe(null);
  expect(Object.keys(mistakes({ reward_min: "x", since: "soon", tag: "a b:c", task: "a b" }))).toEqual(["reward_min", "since", "tag"]);
  expect(Object.keys(mistakes({ tag: "user:" }))).toEqual(["tag"]);
  expect(mistakes({ task: "Sort ☃", tag: "user=ann b=c:d@example.com" })).toEqual({});
  expect(toQuery({ task: "Sort ☃", tag: "user=ann b=c:d@example.com" }, 0)).toEqual({ task: "Sort ☃", tag: "user:ann b=c:d@example.com" });
  expect(toQuery({ tag: "lang" }, 0)).toEqual({ tag: "lang" });
  expect(mistakes({ reward_min: "-0.5", since: "3d", tag: "lang=en" })).toEqual({});
  expect(toQuery({ tag: "lang=en", since: "1m", q: " hi " }, 100)).toEqual({ tag: "lang:en", since: "40", q: "hi" });
  expect([fieldOf("query.tag.lang"), fieldOf("query.reward_min"), fieldOf("body.x"), fieldOf(null)]).toEqual(["tag", "reward_min", null, null]);
});

test("numbers and times", () => {
  expect([number(0.123456), number(12345), number(1234567), number(0.00001234), number(null)]).toEqual(["0.123", "12,345", "1.23M", "1.23e-5", "–"]);
  expect([number(1234.567), signed(0.5), signed(-0.5)]).toEqual(["1,235", "+0.5", "−0.5"]);
  expect([duration(0.42), duration(3.24), duration(300), duration(null)]).toEqual(["420 ms", "3.2 s", "5 min", "–"]);
  expect([ago(100, 100), ago(40, 100), ago(100 - 7200, 100)]).toEqual(["now", "1m ago", "2h ago"]);
});

test("places survive the URL", () => {
  const to = link("episode", "a~b/c d", { key: "k", call: "" });
  expect(parsePlace(to)).toEqual({ view: "episode", id: "a~b/c d", query: { key: "k" } });
  expect(parsePlace("").view).toBe("now");
  expect(parsePlace("#/x/%E0%A4%A").id).toBe("%E0%A4%A");
});

test("server-sent events come whole, however they are cut", () => {
  const text = ": hi\n\nid: 7\nevent: call\ndata: {}\n\nevent: reset\r\ndata:\r\n\r\n";
  for (const size of [1, 3, 1000]) {
    const parser = new EventParser();
    const found = [];
    for (let n = 0; n < text.length; n += size) found.push(...parser.push(text.slice(n, n + size)));
    expect(found.map((f) => [f.event, f.id])).toEqual([["call", "7"], ["reset", null]]);
  }
});

test("messages of every wire format read alike", () => {
  expect(read({ role: "assistant", content: null, tool_calls: [{ id: "1", function: { name: "f", arguments: '{"a":1}' } }] }).uses).toEqual([
    { id: "1", name: "f", args: '{\n "a": 1\n}' },
  ]);
  expect(read({ role: "assistant", content: [{ type: "tool_use", id: "1", name: "f", input: {} }, { type: "text", text: "hm" }] })).toMatchObject({ text: "hm", uses: [{ name: "f" }] });
  expect(read({ role: "user", content: [{ type: "tool_result", tool_use_id: "1", content: [{ type: "text", text: "r" }] }] })).toMatchObject({ role: "tool", answers: "1", text: "r" });
  expect(read({ type: "function_call", name: "f", arguments: "{}", call_id: "c" })).toMatchObject({ role: "assistant", uses: [{ id: "c" }] });
  expect(read({ type: "function_call_output", call_id: "c", output: "o" })).toMatchObject({ role: "tool", answers: "c", text: "o" });
  expect(read("just text").text).toBe("just text");
  expect(read(null).text).toBe("");
  expect(read({ role: "user", content: [{ type: "image_url", image_url: { url: "data:" } }] }).others).toEqual(["image_url"]);
});

test("rows in sight, and the next row of j and k", () => {
  expect(visible(0, 320, 100_000)).toEqual([0, 22]);
  expect(visible(32_000, 320, 100_000)).toEqual([988, 1022]);
  expect(visible(0, 320, 3)).toEqual([0, 3]);
  const rows = ["a", "b", "c"];
  const id = (x: string) => x;
  expect([step(rows, id, null, 1), step(rows, id, "a", 1), step(rows, id, "c", 1), step([], id, null, 1)]).toEqual(["a", "b", "c", undefined]);
});

test("the funnel counts training groups alone, and keeps every line", () => {
  const line = (stage: string) => ({ stage, cause: stage, count: 1, text: stage, fix: null, severity: "remark" as const });
  const stages = ["engine", "store", "calls", "episodes", "groups", "judge", "reward", "untrainable", "lost", "ready", "trainer", "step", "gate", "plugin"];
  const status = {
    calls: 50, episodes: { open: 2, done: 20, deleted: 3 }, groups: { forming: 2, eval: 7, waiting_reward: 1, ready: 1, trained: 3, skipped: 1 },
    steps: 3, batch: { batches: { trained: 3 } }, funnel: { lines: stages.map(line) },
  } as unknown as Status;
  const found = funnelOf(status);
  expect(Object.fromEntries(found.map((s) => [s.name, s.count]))).toEqual({ calls: 50, episodes: 22, groups: 6, scored: 5, leased: 4, trained: 3, steps: 3 });
  expect(found.flatMap((s) => s.losses.map((l) => l.stage)).sort()).toEqual([...stages, "groups"].sort());
  expect(found[2]?.losses.at(-1)?.text).toBe("7 held-out groups measure (split = eval): such runs never train");
});

test("a task has the name that the agent gave it", () => {
  const named = { task: "Book-a-flight-4d8bb65b", tags: { "task-text": "Book a flight", lang: "de" } };
  expect([taskOf(named), tagsOf(named)]).toEqual(["Book a flight", [["lang", "de"]]]);
  expect(taskOf({ task: "sort", tags: {} })).toBe("sort");
  expect(taskOf({ task: null, tags: {} })).toBe("");
});

test("what was imported has no times and tokens of its own", () => {
  expect([isImported({ id: "0000000000QJ33PAWZ6BCN73MY" }), isImported({ id: "01M832A79SPAH7WXYCXHHQPTVC" })]).toEqual([true, false]);
  expect(isMeasured({ adapter: null, prompt_tokens: 0, completion_tokens: 0 })).toBe(false);
  expect(isMeasured({ adapter: "tiny", prompt_tokens: 0, completion_tokens: 0 })).toBe(true);
  expect(isMeasured({ adapter: null, prompt_tokens: 7, completion_tokens: 0 })).toBe(true);
});

test("an error is read where it has a usual shape, and shown whole where it has none", () => {
  expect(errorText('{"error": {"message": "too long", "code": 400}}')).toBe("too long");
  expect(errorText('{"message": "too long"}')).toBe("too long");
  for (const odd of ["no JSON", "[1]", "null", '{"error": 3}']) expect(errorText(odd)).toBe(odd);
});

test("a long text is searched by line", () => {
  expect(linesWith('{\n "a": 1,\n "B": 2\n}', "b")).toBe('3:  "B": 2');
  expect(linesWith("x\nx\nx", "x", 2)).toBe("1: x\n2: x\n… and 1 more line");
  expect(linesWith("x", "y")).toBe("no line holds this");
});

test("a picture is shown where its bytes stand in the message, and nowhere else", () => {
  const bytes = "data:image/png;base64,AAAA";
  const of = (part: Json): string[] => read({ role: "user", content: [part] }).images;
  expect(of({ type: "image_url", image_url: { url: bytes } })).toEqual([bytes]);
  expect(of({ type: "input_image", image_url: bytes })).toEqual([bytes]);
  expect(of({ type: "image", source: { type: "base64", media_type: "image/png", data: "AAAA" } })).toEqual([bytes]);
  for (const url of ["https://elsewhere/a.png", "data:text/html;base64,AAAA", "javascript:1"]) expect(of({ type: "image_url", image_url: { url } })).toEqual([]);
});

test("a correlation of few has a wide interval that holds it", () => {
  for (const [r, n] of [[0.9, 8], [1, 5], [-1, 12], [0, 400]] as const) {
    const [low, high] = spanOf(r, n);
    expect(low).toBeLessThanOrEqual(r);
    expect(high).toBeGreaterThanOrEqual(r);
    expect(low).toBeGreaterThanOrEqual(-1);
  }
  const wide = (n: number): number => spanOf(0.9, n)[1] - spanOf(0.9, n)[0];
  expect(wide(8)).toBeGreaterThan(3 * wide(200));
});

test("a reply's Markdown is read, and nothing of it becomes HTML or another kind of address", () => {
  const text = "# Plan\nDo **this** first.\n\n1. one\n   more\n2. two\n   - inner\n```js\n# no heading\n```\n> said\n| a | b |\nSee [it](https://a.b/c) or https://d.e/f.";
  expect(blocks(text)).toEqual([
    { kind: "heading", text: "Plan" },
    { kind: "text", text: "Do **this** first.\n" },
    {
      kind: "list",
      ordered: true,
      items: [
        { depth: 0, number: 1, text: "one\nmore" },
        { depth: 0, number: 2, text: "two" },
        { depth: 1, number: 0, text: "inner" },
      ],
    },
    { kind: "code", text: "# no heading" },
    { kind: "quote", text: "said" },
    { kind: "code", text: "| a | b |" },
    { kind: "text", text: "See [it](https://a.b/c) or https://d.e/f." },
  ]);
  expect(inlines("See [it](https://a.b/c) or https://d.e/f.")).toEqual([
    "See ",
    { kind: "link", text: "it", href: "https://a.b/c" },
    " or ",
    { kind: "link", text: "https://d.e/f", href: "https://d.e/f" },
    ".",
  ]);
  for (const evil of ["[x](javascript:alert(1))", "<img src=x onerror=alert(1)>", "[x](data:text/html,a)", "2 * 3 * 4", "a_b_c"]) {
    expect(inlines(evil)).toEqual([evil]);
    expect(isMarked(evil)).toBe(false);
  }
  expect(blocks("```\ncut off")).toEqual([{ kind: "code", text: "cut off" }]);
  for (const long of ["[", "**", "`", "- ", "https://"]) expect(isMarked(long.repeat(20_000))).toBeTypeOf("boolean");
});

test("what strangers wrote is shown with a sign for each character that steers", () => {
  expect(printable("a\u001b[31mb\u0000\u007f\u009b\u202ec\u2066\u200f")).toBe("a␛[31mb␀␡‹U+009B›‹U+202E›c‹U+2066›‹U+200F›");
  expect(printable("a\tb\nc é ✓ 👩‍💻 שלום")).toBe("a\tb\nc é ✓ 👩‍💻 שלום");
});
