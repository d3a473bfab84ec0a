"use strict";
// Transcripts hold what strangers wrote: text goes in by textContent alone, never as HTML.
const API = "/slipstream/v1";
const $ = (id) => document.getElementById(id);
let cursor = null;

function el(tag, attributes, ...children) {
  const svg = ["svg", "polyline", "circle", "line", "text", "title"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  for (const child of children) node.append(typeof child === "object" && child !== null ? child : document.createTextNode(child ?? ""));
  return node;
}

async function ask(path, options) {
  const headers = { "content-type": "application/json" };
  const key = sessionStorage.getItem("key");
  if (key) headers.authorization = "Bearer " + key;
  const response = await fetch(API + path, { headers, ...options });
  if (response.status === 401 || response.status === 403) $("login").hidden = false;
  const body = await response.json();
  if (!response.ok) throw new Error(body.error ? body.error.message + (body.error.fix ? " (" + body.error.fix + ")" : "") : response.status);
  return body;
}

const when = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleString() : "");
const short = (x) => (x === null || x === undefined ? "" : Math.round(x * 1000) / 1000);

async function status() {
  const s = await ask("/status");
  $("login").hidden = true;
  $("live").textContent = Object.entries(s.models).map(([m, a]) => m + " → " + a).join(", ");
  const lines = s.funnel.lines.map((l) => el("li", { class: l.blocks ? "blocks" : "" }, l.text, l.fix ? el("span", { class: "fix" }, " → " + l.fix) : ""));
  $("why").replaceChildren(...(lines.length ? lines : [el("li", {}, s.steps + " steps so far; nothing is waited for.")]));
  const numbers = { episodes: sum(s.episodes), calls: s.calls, steps: s.steps, "groups waiting": s.groups.ready ?? "", "capture lost": s.capture_lost };
  for (const sidecar of s.sidecars) if (sidecar.state !== "ended") numbers[sidecar.name] = sidecar.state;
  $("numbers").replaceChildren(...Object.entries(numbers).flatMap(([k, v]) => [el("div", {}, el("dt", {}, k), el("dd", {}, String(v)))]));
}
const sum = (counts) => Object.values(counts).reduce((a, b) => a + b, 0);

async function chart() {
  const { rows } = await ask("/success");
  const { adapters } = await ask("/adapters");
  const version = (name) => (adapters.find((a) => a.name === name) || { version: 0 }).version;
  const lines = { new: new Map(), control: new Map(), eval: new Map() };
  for (const r of rows) {
    if (r.mean === null || r.mean === undefined) continue;
    const line = r.split === "eval" ? lines.eval : r.arm === "control" ? lines.control : lines.new;
    line.set(version(r.adapter), { ...r, x: version(r.adapter) });
  }
  const points = Object.values(lines).flatMap((m) => [...m.values()]);
  if (!points.length) { $("chart").replaceChildren(el("p", {}, "No rewards yet.")); return; }
  const right = Math.max(1, ...points.map((p) => p.x)), low = Math.min(0, ...points.map((p) => p.mean)), high = Math.max(1, ...points.map((p) => p.mean));
  const x = (v) => 40 + (v / right) * 640, y = (v) => 230 - ((v - low) / (high - low)) * 210;
  const svg = el("svg", { viewBox: "0 0 700 260", role: "img", "aria-label": "Mean reward by adapter version" });
  for (const v of [low, (low + high) / 2, high]) {
    svg.append(el("line", { class: "axis", x1: 40, x2: 690, y1: y(v), y2: y(v) }), el("text", { x: 4, y: y(v) + 4 }, String(short(v))));
  }
  for (const [name, line] of Object.entries(lines)) {
    const sorted = [...line.values()].sort((a, b) => a.x - b.x);
    svg.append(el("polyline", { class: name, points: sorted.map((p) => x(p.x) + "," + y(p.mean)).join(" ") }));
    for (const p of sorted) {
      svg.append(el("circle", { class: name, cx: x(p.x), cy: y(p.mean), r: 4 }, el("title", {}, p.adapter + ": " + short(p.mean) + " over " + p.episodes + " episodes")));
    }
  }
  for (let v = 0; v <= right; v += Math.max(1, Math.ceil(right / 12))) svg.append(el("text", { x: x(v) - 4, y: 252 }, v === 0 ? "base" : "@" + v));
  $("chart").replaceChildren(svg);
}

async function decide(name, what) {
  try {
    const a = await ask("/adapters/" + encodeURIComponent(name) + "/" + what, { method: "POST", body: JSON.stringify({ reason: "by hand, on the page" }) });
    $("said").textContent = a.name + " is " + a.state;
  } catch (e) { $("said").textContent = e.message; }
  await adapters();
}

async function adapters() {
  const { adapters: all } = await ask("/adapters");
  $("adapters").replaceChildren(...all.map((a) => el("tr", {},
    el("td", {}, a.name), el("td", {}, a.state.replace("_", " ") + (a.loaded ? " · loaded" : "")), el("td", {}, when(a.created)), el("td", {}, a.step),
    el("td", {}, String(a.episodes)), el("td", {}, why(a)),
    el("td", {},
      ["candidate", "retired", "rolled_back"].includes(a.state) ? el("button", { onclick: () => decide(a.name, "promote") }, "Promote") : "",
      ["candidate", "live", "loading"].includes(a.state) ? el("button", { onclick: () => decide(a.name, "rollback") }, "Roll back") : ""))));
}
function why(a) {
  const g = a.gate;
  if (!g || !g.trial_episodes) return a.reason || (g && g.reason) || "";
  const range = g.difference === null ? "" : "difference " + short(g.difference) + " in [" + short(g.lower) + ", " + short(g.upper) + "], ";
  const left = g.episodes_left === null ? "" : ", about " + g.episodes_left + " more until a verdict";
  return (a.reason || g.reason) + " (" + range + "evidence " + short(g.evidence) + " of " + short(g.threshold) + left + ")";
}

async function episodes(more) {
  const query = new URLSearchParams({ limit: "25" });
  for (const f of ["task", "adapter", "split"]) if ($("f-" + f).value) query.set(f, $("f-" + f).value);
  if (more && cursor) query.set("cursor", cursor);
  const page = await ask("/episodes?" + query);
  cursor = page.next;
  $("more").hidden = !cursor;
  const rows = page.episodes.map((e) => el("tr", { class: "pick", tabindex: 0, onclick: () => detail(e), onkeydown: (k) => k.key === "Enter" && detail(e) },
    el("td", {}, e.id), el("td", {}, e.task), el("td", {}, e.adapter), el("td", {}, e.arm), el("td", {}, e.state), el("td", {}, String(e.calls)),
    el("td", {}, String(short(e.reward))), el("td", {}, when(e.started))));
  if (more) $("episodes").append(...rows); else $("episodes").replaceChildren(...rows);
  if (!more) warn(page.episodes);
}

// One constant id used for ever: an episode that never ends, or one that starts again and again as id~2, id~3, …
function warn(list) {
  const again = list.filter((e) => /~\d+$/.test(e.id)), names = new Set(again.map((e) => e.key + " " + e.id.replace(/~\d+$/, "")));
  const long = list.find((e) => e.calls > 500);
  const one = again.length >= 5 && names.size === 1;
  $("warning").hidden = !(one || long);
  if (one) $("warning").textContent = "Every episode is called " + again[0].id.replace(/~\d+$/, "") + ": give each run of the agent its own x-slipstream-episode.";
  else if (long) $("warning").textContent = "The episode " + long.id + " has " + long.calls + " calls: is one id used for all runs? Give each run its own.";
}

function text(message) {
  if (message === null || message === undefined) return "";
  if (typeof message === "string") return message;
  const content = message.content;
  const parts = Array.isArray(content) ? content.map((p) => p.text ?? JSON.stringify(p)).join("\n") : content ?? "";
  const tools = (message.tool_calls || []).map((t) => t.function ? t.function.name + "(" + t.function.arguments + ")" : JSON.stringify(t)).join("\n");
  return [message.reasoning_content || message.reasoning, parts, tools].filter(Boolean).join("\n") || JSON.stringify(message);
}
const bubble = (m, extra) => el("div", { class: "message" }, el("div", { class: "role" }, (m && (m.role || m.type)) || "", extra || ""), el("pre", {}, text(m)));

function strength(value) {
  const size = Math.abs(value), step = size < 0.25 ? 1 : size < 1 ? 2 : 3;
  return value === 0 ? "" : (value > 0 ? "up" : "down") + step;
}

// A trained episode's sampled tokens each carried its advantage; what the engine gave of a token is its id and its log-probability.
function tokens(call, advantage) {
  const box = el("div", { class: "tokens" });
  (call.completion_ids || []).forEach((ids, choice) => ids.forEach((id, i) => {
    const p = call.logprobs && call.logprobs[choice] ? call.logprobs[choice][i] : null;
    box.append(el("span", { class: strength(advantage), title: "advantage " + short(advantage) + (p === null ? "" : ", probability " + short(Math.exp(p))) }, String(id)), " ");
  }));
  return box;
}

async function detail(e) {
  const query = new URLSearchParams({ tokens: "true" });
  query.set("key", e.key);
  const d = await ask("/episodes/" + encodeURIComponent(e.id) + "?" + query);
  $("detail").hidden = false;
  $("h-detail").textContent = "Episode " + d.id;
  $("about").textContent = [d.task && "task " + d.task, d.adapter, d.arm + " arm", d.state,
    ...d.rewards.map((r) => r.name + " " + short(r.value) + " (" + r.source + (r.reason ? ": " + r.reason : "") + ")"),
    d.advantage === null ? "not trained on" : "advantage " + short(d.advantage), d.trained_adapters.length && "trained " + d.trained_adapters.join(", ")].filter(Boolean).join(" · ");
  let shown = 0;
  $("calls").replaceChildren(...d.call_list.map((c) => {
    const fresh = c.extends ? c.messages.slice(shown) : c.messages;
    shown = c.messages.length;
    const box = el("div", {}, ...fresh.map((m) => bubble(m)), ...c.reply.map((m) => bubble(m, c.trainable ? "" : " · not trainable: " + (c.untrainable_reason || c.outcome))));
    if (c.error) box.append(el("p", { class: "bad" }, c.error));
    if (d.advantage !== null && c.trainable) box.append(tokens(c, d.advantage));
    return box;
  }));
  $("detail").scrollIntoView({ block: "start" });
}

async function refresh() {
  try { await status(); await adapters(); await chart(); } catch (e) { $("why").textContent = e.message; }
}

$("filter").addEventListener("submit", (e) => { e.preventDefault(); episodes(false).catch((x) => { $("why").textContent = x.message; }); });
$("more").addEventListener("click", () => episodes(true));
$("login").addEventListener("submit", (e) => { e.preventDefault(); sessionStorage.setItem("key", $("key").value); refresh().then(() => episodes(false)); });
refresh().then(() => episodes(false)).catch((e) => { $("why").textContent = e.message; });
setInterval(refresh, 5000);
