import { expect, test } from "vitest";
import { expand } from "./episode";
import { historyOf, type Sent } from "./history";
import { type Kind, lastOfRun, ownMessages, pathTo, treeOf } from "./tree";
import type { Call, Message } from "./types";

const SYSTEM = { role: "system", content: "You sort mail." };
const HELPER = { role: "system", content: "You look things up." };
const user = (content: string): Message => ({ role: "user", content });
const says = (content: string): Message => ({ role: "assistant", content });
let clock = 0;

function call(id: string, messages: Message[], more: Partial<Call> = {}): Call {
  clock += 1;
  return {
    id, episode: "e", number: clock, at: clock, seconds: 0.5, dialect: "chat", model: "m", adapter: "m", trained: "m", status: 200,
    outcome: "ok", trainable: true, untrainable_reason: null, sampling: {}, messages, tools: [], reply: [says(`re ${id}`)],
    prompt_tokens: 1, completion_tokens: 1, prompt_ids: null, completion_ids: null, logprobs: null, finish_reason: "stop", error: null,
    extends: null, kind: "main", prefix: null, ...more,
  };
}

function after(before: Call, id: string, text: string, more: Partial<Call> = {}): Call {
  return call(id, [...before.messages, ...before.reply, user(text)], { extends: before.id, tools: before.tools, ...more });
}

const kinds = (calls: Call[]): Record<string, Kind> => Object.fromEntries(treeOf(calls).map((n) => [n.call.id, n.kind]));

test("turns stand below one another, and each message stands once", () => {
  const a = call("a", [SYSTEM, user("hi")]);
  const b = after(a, "b", "and then?");
  const nodes = treeOf([a, b]);
  expect(nodes.map((n) => [n.kind, n.depth])).toEqual([["start", 0], ["turn", 0]]);
  expect(nodes[1]?.own).toEqual([user("and then?")]);
});

test("a client that writes the older messages anew adds only what is new", () => {
  const a = call("a", [SYSTEM, user("hi")]);
  const b = call("b", [SYSTEM, { role: "user", content: [{ type: "text", text: "hi" }] }, says("re a!"), user("more")]);
  expect(ownMessages(b, a)).toEqual([user("more")]);
});

test("a retry takes the place of the attempt that failed", () => {
  const a = call("a", [SYSTEM, user("hi")]);
  const b = after(a, "b", "go", { outcome: "error", reply: [] });
  const c = after(a, "c", "go");
  const d = after(c, "d", "on");
  const nodes = treeOf([a, b, c, d]);
  expect(nodes.map((n) => [n.call.id, n.kind, n.depth])).toEqual([
    ["a", "start", 0], ["b", "failed", 1], ["c", "retry", 0], ["d", "turn", 0],
  ]);
  const superseded = call("s", [SYSTEM, user("first")], { outcome: "superseded" });
  expect(kinds([superseded, call("t", [SYSTEM, user("first")])])).toEqual({ s: "failed", t: "retry" });
});

test("the same request again without a failure is another sample", () => {
  const a = call("a", [SYSTEM, user("hi")]);
  expect(kinds([a, call("b", [SYSTEM, user("hi")])]).b).toBe("sample");
  const c = after(a, "c", "go");
  const d = after(a, "d", "go");
  expect(kinds([a, c, d]).d).toBe("sample");
});

test("samples and edits stand below the call that they repeat or change", () => {
  const a = call("a", [SYSTEM, user("hi")]);
  const b = after(a, "b", "go");
  const more = [after(a, "c", "go"), after(a, "d", "go"), after(a, "e", "stop")];
  const on = after(b, "f", "and on");
  expect(treeOf([a, b, ...more, on]).map((n) => [n.call.id, n.kind, n.depth])).toEqual([
    ["a", "start", 0], ["b", "turn", 0], ["c", "sample", 1], ["d", "sample", 1], ["e", "edit", 1], ["f", "turn", 0],
  ]);
});

test("a run ends where it went on, not where a sub-agent or a failed attempt did", () => {
  const a = call("a", [SYSTEM, user("hi")], { reply: [says("ask a helper")] });
  const b = after(a, "b", "go");
  const best = after(a, "c", "go");
  const on = after(best, "d", "with the second sample");
  expect(lastOfRun(treeOf([a, b, best, on]))?.call.id).toBe("d");
  const tail = [call("h", [HELPER, user("look up")]), after(a, "x", "found"), call("k", [HELPER, user("look up more")], { at: 0.5 })];
  const nodes = treeOf([a, ...tail]);
  expect(lastOfRun(nodes)?.call.id).toBe("x");
  const failed = after(a, "f", "again", { outcome: "error", reply: [] });
  const retried = after(a, "r", "again");
  expect(lastOfRun(treeOf([a, failed]))?.call.id).toBe("f");
  expect(lastOfRun(treeOf([a, failed, retried]))?.call.id).toBe("r");
  expect(lastOfRun([])).toBe(undefined);
});

test("another message at the same place is an edit", () => {
  const a = call("a", [SYSTEM, user("hi")]);
  const b = after(a, "b", "yes");
  const c = after(a, "c", "no");
  expect(kinds([a, b, c])).toEqual({ a: "start", b: "turn", c: "edit" });
  const first = call("x", [SYSTEM, user("hi"), says("own words"), user("one")]);
  expect(kinds([first, call("y", [SYSTEM, user("hi"), says("other words"), user("one")])]).y).toBe("edit");
});

test("a cleared history is an edit, though the last message is the same", () => {
  const a = call("a", [SYSTEM, user("hi")], { reply: [says("look")] });
  const result = (content: string): Message => ({ role: "tool", tool_call_id: "t", content });
  const b = call("b", [SYSTEM, user("hi"), says("look"), result("10 kB of text"), user("go on")], { extends: "a" });
  const cleared = call("c", [SYSTEM, user("hi"), says("look"), result("[cleared]"), user("go on")], { extends: "a" });
  expect(kinds([a, b, { ...b, id: "d", at: b.at + 1 }]).d).toBe("sample");
  expect(kinds([a, b, cleared]).c).toBe("edit");
  // where the proxy knows an earlier call that it goes on with, only the old messages differ
  const long = [SYSTEM, user("hi"), says("look"), result("10 kB of text"), says("found"), user("go on")];
  const other = [SYSTEM, user("hi"), says("look"), result("[cleared]"), says("found"), user("go on")];
  const first = call("x", [SYSTEM, user("hi"), says("look"), result("10 kB of text")], { reply: [says("found")] });
  expect(kinds([first, call("y", long, { extends: "x" }), call("z", other, { extends: "x" })])).toEqual({ x: "start", y: "turn", z: "edit" });
});

test("sub-agents of one call stand side by side below it, though they run at once", () => {
  const a = call("a", [SYSTEM, user("hi")], { reply: [says("ask all four helpers")] });
  const helpers = [0, 1, 2, 3].map((n) => call(`h${n}`, [HELPER, user(`look up ${n}`)]));
  const answers = helpers.map((h, n) => after(h, `g${n}`, "found"));
  const b = after(a, "b", "all found");
  const nodes = treeOf([a, ...helpers, ...answers, b]);
  const of = (id: string) => nodes.find((n) => n.call.id === id);
  for (const h of helpers) {
    expect(of(h.id)?.kind).toBe("subagent");
    expect(of(h.id)?.parent?.call.id).toBe("a");
    expect(of(h.id)?.depth).toBe(1);
  }
  for (const g of answers) expect([of(g.id)?.kind, of(g.id)?.depth]).toEqual(["turn", 1]);
  expect(nodes.at(-1)?.call.id).toBe("b");
});

test("a sub-agent stands below the call that speaks of its task", () => {
  const a = call("a", [SYSTEM, user("hi")], { reply: [says('ask {"prompt": "find the train to Oslo"}')] });
  const h = call("h", [HELPER, user("something else entirely")], { reply: [says("wait")] });
  const k = call("k", [{ role: "system", content: "third" }, user("find the train to Oslo")]);
  const nodes = treeOf([a, h, k, after(h, "h2", "x"), after(a, "b", "done")]);
  expect(nodes.find((n) => n.call.id === "k")?.parent?.call.id).toBe("a");
});

test("a conversation that goes on with less of itself was compacted", () => {
  const a = call("a", [SYSTEM, user("hi")]);
  const b = after(a, "b", "more");
  const c = after(b, "c", "and more");
  const fresh = call("d", [SYSTEM, user("Summary: hi, more, and more. Go on.")]);
  expect(treeOf([a, b, c, fresh]).map((n) => [n.call.id, n.kind, n.depth]).at(-1)).toEqual(["d", "compaction", 0]);
  const kept = call("e", [SYSTEM, user("hi"), { role: "assistant", content: "Summary of all" }, user("go")]);
  expect(kinds([a, b, c, kept]).e).toMatch(/compaction|edit/);
  const cut = call("f", [SYSTEM, user("hi"), { role: "tool", content: "[earlier results were removed]" }]);
  expect(kinds([a, b, c, cut]).f).toBe("compaction");
});

test("2,000 turns are laid out in no time, and each call stands there once", () => {
  const calls: Call[] = [call("c0", [SYSTEM, user("start")])];
  for (let n = 1; n < 2000; n += 1) calls.push(after(calls[n - 1] as Call, `c${n}`, `turn ${n}`));
  const began = performance.now();
  const nodes = treeOf(calls);
  expect(performance.now() - began).toBeLessThan(3000);
  expect(new Set(nodes.map((n) => n.call.id)).size).toBe(2000);
  expect(nodes.every((n) => n.depth === 0)).toBe(true);
  expect(pathTo(nodes, "c1999")).toHaveLength(2000);
});

test("no call is lost, whatever extends what", () => {
  const seed = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3];
  const calls: Call[] = [];
  seed.forEach((s, n) => {
    const base = s % 3 === 0 ? undefined : calls[s % Math.max(1, n)];
    calls.push(base ? after(base, `r${n}`, `t${s}`) : call(`r${n}`, [s % 2 ? SYSTEM : HELPER, user(`u${s}`)]));
  });
  calls.push(call("lost", [user("x")], { extends: "not stored any more" }));
  expect(treeOf(calls).map((n) => n.call.id).sort()).toEqual(calls.map((c) => c.id).sort());
});

test("calls that travel as deltas are whole again", () => {
  const a = call("a", [SYSTEM, user("hi")], { tools: ["t"] });
  const b = call("b", [user("more")], { extends: "a", prefix: { call: "a", messages: 3, tokens: 0, tools: true } });
  const c = call("c", [user("other")], { extends: "a", prefix: { call: "b", messages: 2, tokens: 0, tools: false } });
  const [, whole, third] = expand([a, b, c]);
  expect(whole?.messages).toEqual([SYSTEM, user("hi"), says("re a"), user("more")]);
  expect(whole?.tools).toEqual(["t"]);
  expect(third?.messages).toEqual([SYSTEM, user("hi"), user("other")]);
});

const tool = (content: string): Message => ({ role: "tool", tool_call_id: "u", content });
const shown = (sent: Sent[]): Message[] => sent.flatMap((s) => (s.until ? shown(s.instead) : [s.message]));
const texts = (messages: Message[]): string[] => messages.map((m) => (m as { content: string }).content);

test("unfolded, the transcript holds exactly what the chosen call sent, however often the history was edited", () => {
  let random = 7;
  const pick = (n: number): number => (random = (random * 16807) % 2147483647) % n;
  for (let round = 0; round < 300; round += 1) {
    const calls: Call[] = [call(`${round}-0`, [SYSTEM, user("start")])];
    for (let n = 1; n < 2 + pick(6); n += 1) {
      const before = calls[n - 1] as Call;
      const messages = [...before.messages, ...before.reply, pick(2) ? tool(`result ${n}`) : user(`turn ${n}`)];
      for (let edits = pick(3); edits > 0; edits -= 1) {
        const at = 1 + pick(messages.length - 1);
        const what = pick(3);
        if (what === 0) messages.splice(at, 1);
        else if (what === 1) messages[at] = { ...(messages[at] as object), content: `[cleared ${round}/${n}/${edits}]` } as Message;
        else messages.splice(at, 0, user(`put in ${round}/${n}/${edits}`));
      }
      calls.push(call(`${round}-${n}`, messages, { extends: before.id }));
    }
    const last = calls.at(-1) as Call;
    const steps = historyOf(pathTo(treeOf(calls), last.id));
    const open = steps.flatMap((s) => [...shown(s.own), ...shown(s.reply)]);
    expect(texts(open).sort()).toEqual(texts([...last.messages, ...last.reply]).sort());
  }
});

test("a cleared tool result stands where it was, with what it was before", () => {
  const a = call("a", [SYSTEM, user("hi")]);
  const b = call("b", [SYSTEM, user("hi"), says("re a"), tool("10 kB of text")], { extends: "a" });
  const c = call("c", [SYSTEM, user("hi"), says("re a"), tool("[cleared]"), says("re b"), user("on")], { extends: "b" });
  const [, second, third] = historyOf(pathTo(treeOf([a, b, c]), "c"));
  expect(second?.own.map((s) => [s.message, s.until?.id, texts(shown(s.instead))])).toEqual([[tool("10 kB of text"), "c", ["[cleared]"]]]);
  expect([third?.changed, third?.leftOut, shown(third?.own ?? [])]).toEqual([1, 0, [user("on")]]);
});

test("a client's own way of writing the same messages is no edit", () => {
  const reply = { role: "assistant", content: "yes ", reasoning_content: "hm", tool_calls: [{ id: "x", function: { name: "f", arguments: '{"a":1}' } }] };
  const a = call("a", [SYSTEM, user("hi")], { reply: [reply] });
  const own = [
    { role: "developer", content: "You sort mail." }, { role: "user", content: [{ type: "text", text: "hi", cache_control: {} }] },
    { role: "assistant", content: [{ type: "text", text: "yes" }] }, { type: "function_call", call_id: "y", name: "f", arguments: '{"a": 1}' }, tool("r"),
  ];
  const [, step] = historyOf(pathTo(treeOf([a, call("b", own, { extends: "a" })]), "b"));
  expect([step?.changed, step?.leftOut, step?.own.map((s) => s.message)]).toEqual([0, 0, [tool("r")]]);
});
