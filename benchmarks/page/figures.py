# ruff: noqa: E402 - the path comes first
"""Every figure of the page's views beside SQL on the store's own tables: python benchmarks/page/figures.py [--episodes 5000]

Three stores: a day of an agent with edits, branches, sub-agents, imports and a trial, on DuckDB and on PostgreSQL, and one
of many runs. Needs Chromium and PostgreSQL's programs. Three minutes. It prints what differs, and exits with 1 if anything
does. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks" / "store")]

from grown import filled, settings
from tests.support.browser import Page
from tests.support.fake_engine import LoraEngine
from tests.support.page_data import PLANE, Runs, make_demo, says, tool, user, uses
from tests.support.page_views import opened
from tests.support.plane import Plane, make_config
from tests.support.postgres import postgres_server

from slipstream.contract import ReplayQuestion, ReplaySet, ReplayVerdict

TABLE = """[...document.querySelectorAll('[role=region][aria-label="%s"] tbody tr:not(.spacer)')]
    .map(r => [...r.cells].map(c => c.innerText.trim()))"""
NOT_DELETED = "state <> 'deleted'"
ROLES = {
    "live": "split <> 'eval' AND arm NOT IN ('control', 'best')",
    "held-out": "split = 'eval'",
}
NOW = """SELECT * FROM t_episodes e WHERE reward IS NOT NULL AND state <> 'deleted' AND task = ? AND strpos(adapter, '@') > 0
    AND arm NOT IN ('control', 'best') ORDER BY started DESC LIMIT 50"""
BASE = """SELECT * FROM t_episodes WHERE reward IS NOT NULL AND state <> 'deleted' AND task = ? AND strpos(adapter, '@') = 0"""


def numbers(text: str) -> list[tuple[float, float]]:
    """(Value, half of its last digit) of each number in a text as the page writes it."""
    found = []
    for sign, digits, unit in re.findall(r"([−+-]?)(\d[\d,]*(?:\.\d+)?)([KM]?)", text):
        scale = {"K": 1e3, "M": 1e6}.get(unit, 1.0)
        decimals = len(digits.partition(".")[2])
        value = float(digits.replace(",", "")) * scale * (-1 if sign in ("−", "-") else 1)
        found.append((value, 0.501 * scale * 10.0**-decimals))
    return found


class Differences:
    def __init__(self, store: str) -> None:
        self.store, self.compared = store, 0
        self.found: list[str] = []

    def see(self, what: str, shown: str, *wanted: float | None) -> None:
        """``shown`` holds exactly these numbers, as far as it rounds them. None: a dash."""
        self.compared += len(wanted)
        read, due = numbers(shown), [w for w in wanted if w is not None]
        same = len(read) == len(due) and all(
            abs(value - w) <= max(half, 0.0051 * abs(w) if "." not in shown and abs(w) >= 1e3 else 0.0)
            for (value, half), w in zip(read, due, strict=True)
        )
        if not same:
            self.found.append(f"{self.store}: {what}: the page shows {shown!r}, SQL says {wanted}")
            print(self.found[-1], flush=True)


class Compared:
    """One plane's page and its store."""

    def __init__(self, plane: Plane, page: Page, home: str, seen: Differences) -> None:
        self.plane, self.page, self.home, self.seen = plane, page, home, seen

    def sql(self, query: str, *params: object) -> list[tuple[Any, ...]]:
        with self.plane.deps.store.db.read() as tx:
            return [tuple(row) for row in tx.all(query, params)]

    def one(self, query: str, *params: object) -> Any:
        return self.sql(query, *params)[0][0]

    async def at(self, where: str, sign: str) -> None:
        await self.page.go(f"{self.home}#/{where}")
        await self.page.until(f"!!document.body && {sign}", 60.0)
        await self.page.settled()

    async def rows(self, label: str) -> list[list[str]]:
        return list(await self.page.js(TABLE % label))

    async def now(self) -> None:
        await self.at("now", "document.querySelectorAll('.funnel > li').length > 4")
        shown = await self.page.js(
            "Object.fromEntries([...document.querySelectorAll('.funnel > li')].map(l => [l.children[0].innerText, l.children[1].innerText]))"
        )
        groups = dict(
            self.sql("SELECT state, count(*) FROM t_groups WHERE kind <> 'window' AND NOT parked GROUP BY state")
        )
        parked = self.one("SELECT count(*) FROM t_groups WHERE kind <> 'window' AND parked")
        leased = sum(groups.get(s, 0) for s in ("leased", "trained", "skipped"))
        scored = leased + sum(groups.get(s, 0) for s in ("ready", "stale", "dropped", "expired"))
        episodes = self.one(f"SELECT count(*) FROM t_episodes WHERE {NOT_DELETED}")
        steps = self.one("SELECT count(*) FROM t_batches WHERE state = 'trained'")
        calls = self.one(f"SELECT sum(calls) FROM t_episodes WHERE {NOT_DELETED}")
        due = {
            "calls": calls, "episodes": episodes, "groups": scored + groups.get("waiting_reward", 0) + parked,
            "scored": scored, "leased": leased, "trained": groups.get("trained", 0), "steps": steps,
        }  # fmt: skip
        for name, value in due.items():
            self.seen.see(f"now, {name}", shown[name], float(value))
        cards = await self.page.js(
            "Object.fromEntries([...document.querySelectorAll('.card')].map(c => [c.querySelector('.name').innerText, c.innerText]))"
        )
        self.seen.see("now, card calls", cards["calls"], float(calls), float(episodes))
        self.seen.see("now, card steps", cards["steps"].split("last")[0], float(steps))
        headline = await self.page.js("document.querySelector('.headline')?.innerText ?? ''")
        if found := re.match(
            r"held-out ([\d.]+) → ([\d.]+) \(.*?\) (?:since|in) .*?, (\d+) versions?, (\d+) taken back", headline
        ):
            query = "SELECT avg(reward) FROM t_episodes WHERE split = 'eval' AND state <> 'deleted' AND adapter = ?"
            live = self.one("SELECT name FROM t_adapters WHERE state = 'live'")
            made = "SELECT count(*) FROM t_adapters WHERE version > 0 AND state NOT IN ('loading', 'refused')"
            self.seen.see("now, headline, base", found[1], self.one(query, "tiny"))
            self.seen.see("now, headline, live", found[2], self.one(query, live))
            self.seen.see("now, headline, versions", found[3], float(self.one(made)))
            back = self.one("SELECT count(*) FROM t_adapters WHERE state = 'rolled_back'")
            self.seen.see("now, headline, taken back", found[4], float(back))

    async def episodes(self) -> None:
        await self.at("episodes", "document.querySelectorAll('tbody tr[data-id]').length > 3")
        count = await self.page.js("document.querySelector('.count').innerText")
        total = self.one(f"SELECT count(*) FROM t_episodes WHERE {NOT_DELETED}")
        self.seen.see("episodes, total", count.rsplit("of", 1)[-1], float(total))
        query = "SELECT reward, calls, prompt_tokens + completion_tokens, prompt_tokens FROM t_episodes WHERE id = ?"
        for name, _, _, _, _, reward, calls, tokens, *_ in await self.rows("Episodes"):
            ((due, n, spent, prompt),) = self.sql(query, name)
            self.seen.see(f"episodes, {name}, reward", reward, due)
            self.seen.see(f"episodes, {name}, calls", calls, float(n))
            self.seen.see(f"episodes, {name}, tokens", tokens, float(spent) if prompt else None)

    async def tasks(self) -> None:
        await self.at("tasks", "!!document.querySelector('h1')")
        for name, base, now, _, calls, tokens, _ in await self.rows("Tasks"):
            sides = []
            for query in (BASE, NOW):
                ((n, mean, called, said),) = self.sql(
                    f"SELECT count(*), avg(reward), avg(calls), avg(completion_tokens) FROM ({query}) r", name
                )
                sides.append((n, mean, called, said))
            for side, shown, (n, mean, _, _) in zip(("base", "now"), (base, now), sides, strict=True):
                told = re.sub(r"\(.*?\)", "", shown)
                self.seen.see(f"tasks, {name}, {side}", told, mean if n else None, float(n) if n else None)
            self.seen.see(f"tasks, {name}, calls", calls, *(float(s[2]) if s[0] else None for s in sides))
            self.seen.see(f"tasks, {name}, tokens", tokens, *(float(s[3]) if s[0] else None for s in sides))

    async def adapters(self) -> None:
        await self.at("adapters", "!!document.querySelector('h1')")
        for name, _, _, _, live, held, running, *_ in await self.rows("Adapters"):
            for role, shown in (("live", live), ("held-out", held)):
                query = f"SELECT count(*), avg(reward) FROM t_episodes WHERE adapter = ? AND reward IS NOT NULL AND {ROLES[role]}"
                ((n, mean),) = self.sql(f"{query} AND {NOT_DELETED}", name)
                told = re.sub(r"\(.*?\)", "", shown)
                self.seen.see(f"adapters, {name}, {role}", told, mean if n else None, float(n) if n else None)
            query = "SELECT count(*) FROM t_episodes WHERE adapter = ? AND state = 'open'"
            self.seen.see(f"adapters, {name}, open now", running, float(self.one(query, name)))

    async def groups(self) -> None:
        await self.at("groups", "document.querySelectorAll('tbody tr[data-id]').length > 0")
        query = "SELECT count(*), count(reward), avg(reward), min(reward), max(reward) FROM t_episodes WHERE grp = ?"
        shown = await self.rows("Groups")
        for name, _, _, runs, rewarded, mean, low, high, *_ in shown:
            ((n, scored, *figures),) = self.sql(f"{query} AND {NOT_DELETED}", name)
            self.seen.see(f"groups, {name}, runs", runs, float(n))
            self.seen.see(f"groups, {name}, rewarded", rewarded, float(scored))
            for what, text, due in zip(("mean", "low", "high"), (mean, low, high), figures, strict=True):
                self.seen.see(f"groups, {name}, {what}", text, due)
        for name in [row[0] for row in shown[:3]]:
            await self.at(f"group/{name}", "document.querySelectorAll('article').length > 0")
            for head, reward, *_, calls, _ in await self.page.js(
                "[...document.querySelectorAll('article')].map(a => [a.querySelector('h2').innerText, ...[...a.querySelectorAll('dd')].map(d => d.innerText)])"
            ):
                ((due, n, said),) = self.sql(
                    "SELECT reward, calls, completion_tokens FROM t_episodes WHERE id = ?", head
                )
                self.seen.see(f"group, {head}, reward", reward.split("(")[0], due)
                self.seen.see(f"group, {head}, calls and tokens", calls, float(n), float(said))

    async def runs(self) -> None:
        """An episode, and two beside each other."""
        names = [
            n for (n,) in self.sql(f"SELECT id FROM t_episodes WHERE {NOT_DELETED} ORDER BY calls DESC, id LIMIT 3")
        ]
        for name in names:
            await self.at(f"episode/{name}", "!!document.querySelector('.row.about')")
            ((reward, calls),) = self.sql("SELECT reward, calls FROM t_episodes WHERE id = ?", name)
            head = await self.page.js("[...document.querySelectorAll('.about > span')].map(s => s.innerText)")
            shown = {text.split()[0] if text.startswith("reward") else text.split()[-1]: text for text in head if text}
            self.seen.see(f"episode, {name}, reward", shown["reward"], reward)
            self.seen.see(f"episode, {name}, calls", shown["call" if calls == 1 else "calls"], float(calls))
            nodes = await self.page.js("document.querySelectorAll('[aria-label=\"Tree of calls\"] [data-call]').length")
            if nodes and calls < 200:
                stored = sum(1 for _ in (await self.plane.ask("GET", f"/episodes/{name}"))[1]["call_list"])
                self.seen.see(f"episode, {name}, stored calls", str(stored), float(calls))
        await self.at(
            f"compare?left=-/{names[0]}&right=-/{names[1]}", "document.querySelectorAll('tbody th').length > 5"
        )
        facts = await self.page.js(
            "Object.fromEntries([...document.querySelectorAll('tbody tr')].filter(r => r.cells.length === 3).map(r => [r.cells[0].innerText, [r.cells[1].innerText, r.cells[2].innerText]]))"
        )
        for column, name in enumerate(names[:2]):
            ((reward, calls, said),) = self.sql(
                "SELECT reward, calls, completion_tokens FROM t_episodes WHERE id = ?", name
            )
            for what, due in (("reward", reward), ("calls", float(calls)), ("tokens sampled", float(said))):
                self.seen.see(f"compare, {name}, {what}", facts[what][column], due)

    async def training(self) -> None:
        """The points of the curve, which is drawn of them, and a batch's episodes."""
        answer = (await self.plane.ask("GET", "/learning?by=adapter&each=role"))[1]
        for p in answer["points"]:
            if p["series"] in ROLES:
                test = f"reward IS NOT NULL AND {NOT_DELETED} AND {ROLES[p['series']]}"
                query = (
                    f"SELECT count(*), avg(reward) FROM t_episodes WHERE {test} AND coalesce(adapter, 'no adapter') = ?"
                )
                ((n, mean),) = self.sql(query, p["adapter"])
                self.seen.see(f"curve, {p['adapter']}, {p['series']}", f"{p['mean']:.9f} of {p['n']}", mean, float(n))
        batches = self.sql("SELECT id FROM t_batches WHERE state = 'trained' ORDER BY created DESC LIMIT 2")
        for (batch,) in batches:
            await self.at(
                f"training?batch={batch}", "document.querySelectorAll('[aria-label^=\"Batch\"] tbody tr').length > 0"
            )
            for name, reward, _ in await self.rows("Episodes of the batch"):
                query = (
                    "SELECT m.reward FROM t_members m JOIN t_episodes e ON e.eid = m.eid WHERE m.batch = ? AND e.id = ?"
                )
                self.seen.see(f"batch, {name}", reward, self.one(query, batch, name))

    async def cases(self) -> None:
        """Sets, their cases, and a version's replay, which is kept in the adapter's own row."""
        await self.at("cases", "!!document.querySelector('h1')")
        for name, version, count, _ in await self.rows("Sets of cases"):
            held = "FROM t_cases WHERE name = ? AND gone IS NULL"
            due = self.one("SELECT version FROM t_case_sets WHERE name = ?", name)
            self.seen.see(f"cases, {name}, version", version, float(due))
            self.seen.see(f"cases, {name}, cases", count, float(self.one(f"SELECT count(*) {held}", name)))
            await self.at(f"cases/{name}", "document.querySelectorAll('section tbody tr').length > 0")
            for episode, _, _, calls, reward, since, _ in await self.rows("Cases"):
                ((n, value, begun),) = self.sql(
                    f"SELECT calls, reward, version {held} AND split_part(eid, '/', 2) = ?", name, episode
                )
                self.seen.see(f"case, {episode}", f"{calls} {reward} {since}", float(n), value, float(begun))
        for adapter, body in self.sql("SELECT name, body FROM t_adapters WHERE strpos(body, '\"questions\":[{') > 0"):
            replay = json.loads(body)["replay"]
            await self.at(
                f"adapters?adapter={adapter}", "!!document.querySelector('[aria-label^=\"Replay of\"] tbody')"
            )
            shown = await self.page.js(
                "[...document.querySelectorAll('[aria-label^=\"Replay of\"] tbody tr')].map(r => [...r.cells].map(c => c.innerText))"
            )
            for (_, name, _, *figures), q in zip(shown, replay["questions"], strict=True):
                for what, text in zip(("cases", "candidate", "control", "visible"), figures, strict=True):
                    self.seen.see(f"replay, {adapter}, {name}, {what}", text, float(q[what]))

    async def cost(self) -> None:
        """Engines' time is counted here in another way: from moment to moment over all calls."""
        days = [d.replace("-", "") for (d,) in self.sql("SELECT day FROM t_days")]
        calls = " UNION ALL ".join(f"SELECT eid, ts, seconds FROM t_calls_{d} WHERE id > '0000000000~'" for d in days)
        of = dict(self.sql("SELECT eid, coalesce(adapter, '') FROM t_episodes"))
        marks = sorted(
            mark
            for n, (eid, ts, seconds) in enumerate(self.sql(calls))
            if seconds > 0
            for mark in ((ts, 1, n, of.get(eid, "")), (ts + seconds, 0, n, of.get(eid, "")))
        )
        served: dict[str, float] = defaultdict(float)
        running: dict[int, str] = {}
        for (at, begins, n, adapter), after in zip(marks, [*marks[1:], None], strict=True):
            if begins:
                running[n] = adapter
            else:
                running.pop(n, None)
            for name in running.values() if after else ():
                served[name] += (after[0] - at) / len(running)
        trained: dict[str, float] = defaultdict(float)
        waiting, known = 0.0, {batch for (batch,) in self.sql("SELECT DISTINCT batch FROM t_members")}
        for kind, text in self.sql("SELECT kind, data FROM t_events ORDER BY id"):
            data = json.loads(text)
            if kind in ("step", "skipped", "undone") and data.get("batch") in known:
                waiting += data.get("seconds", 0.0)
                if data.get("adapter"):
                    trained[data["adapter"]] += waiting
                    waiting = 0.0
        dollars: dict[str, float] = defaultdict(float)
        for eid, meta in self.sql("SELECT eid, meta FROM t_rewards WHERE source = 'judge'"):
            said = json.loads(meta)
            if said.get("cost") is not None:
                dollars[of.get(eid, "")] += said["cost"] / said["judged_with"]
        query = f"""SELECT count(*), sum(calls), sum(prompt_tokens), sum(completion_tokens) FROM t_episodes
            WHERE {NOT_DELETED} AND coalesce(adapter, '') = ?"""
        await self.at("cost", "document.querySelectorAll('tbody tr').length > 1")
        scale = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
        for name, *sums, serving, training, judged in (await self.rows("Cost"))[:-1]:
            adapter = "" if name == "no version" else name
            ((n, *due),) = self.sql(query, adapter)
            for what, text, value in zip(("episodes", "calls", "prompts", "sampled"), sums, (n, *due), strict=True):
                self.seen.see(f"cost, {name}, {what}", text, float(value or 0))
            for what, text, seconds in (("engine", serving, served[adapter]), ("training", training, trained[adapter])):
                unit = scale[text.split()[1]]
                near = {"ms": 0.51, "s": 0.06 if seconds < 10 else 0.51, "min": 1.0, "h": 0.1, "d": 1.0}[
                    text.split()[1]
                ]
                if abs(float(text.split()[0].replace(",", "")) - seconds / unit) > near:
                    self.seen.found.append(f"cost, {name}, {what}: the page shows {text!r}, SQL says {seconds}")
                    print(self.seen.found[-1], flush=True)
                self.seen.compared += 1
            self.seen.see(f"cost, {name}, judge", judged, dollars.get(adapter))

    async def people(self) -> None:
        """Label, Judge and Audit."""
        await self.at("label", "document.body.innerText.includes('labelled so far')")
        shown = await self.page.js("document.querySelector('p.small').innerText")
        labelled = self.one("SELECT count(DISTINCT eid) FROM t_rewards WHERE source = 'human'")
        self.seen.see("label, labelled so far", re.findall(r"([\d,]+) labelled", shown)[0], float(labelled))
        await self.at("judge", "document.querySelectorAll('.card').length > 4")
        cards = await self.page.js(
            "Object.fromEntries([...document.querySelectorAll('.card')].map(c => [c.querySelector('.name').innerText, c.querySelector('.value').innerText]))"
        )
        parked = self.one("SELECT count(*) FROM t_groups WHERE parked AND kind <> 'window'")
        self.seen.see("judge, parked", cards["parked"], float(parked))
        await self.at("audit", "!!document.querySelector('h1')")
        changes = self.one("SELECT count(*) FROM t_audit")
        if changes:
            count = await self.page.js("document.querySelector('table').getAttribute('aria-rowcount')")
            self.seen.see("audit, entries", str(int(count) - 1), float(min(changes, 200)))


async def make_day(plane: Plane) -> None:
    """The demo's day, an agent that edits its history, and traces that were imported."""
    await make_demo(plane)
    runs = Runs(plane)
    first = uses("search", 1, q="logs")
    start = [user("Sort the mail, FIRST WORDING.")]
    await runs.call("edited", start, first)
    cleared = [user("Sort the mail, SECOND WORDING."), first, tool(first, "[cleared]")]
    await runs.call("edited", cleared, says("All done."), done=True)
    await plane.seen("edited")
    said = [{"role": "user", "content": "Oslo, please"}, {"role": "assistant", "content": "Booked."}]
    for n in range(3):
        body = {"id": f"old{n}", "model": "gpt-4o", "messages": said, "at": plane.deps.now() - 60, "reward": n / 2}
        assert (await plane.ask("POST", "/import", body))[0] == 200
        await plane.seen(f"old{n}")
    await make_replayed(plane)


async def make_replayed(plane: Plane) -> None:
    """A set of cases that has changed, and a version that was tried on it."""
    for path, names in (("must-pass", ["run-1-0", "run-1-1", "run-2-0"]), ("must-pass/remove", ["run-1-0"])):
        assert (await plane.ask("POST", f"/cases/{path}", {"episodes": names}))[0] == 200
    asked = {"set": "must-pass", "evidence": 1.5, "threshold": 20.0, "cases": 2}
    questions = [
        ReplayQuestion(
            **asked, question="tool calls", verdict="undecided", candidate=0.9375, control=0.875, visible=0.31
        ),
        ReplayQuestion(**asked, question="guards", verdict="better", candidate=1.0, control=0.5, visible=0.05),
    ]
    sets = [ReplaySet(name="must-pass", version=2, cases=2)]
    verdict = ReplayVerdict(outcome="passed", control="tiny@1", sets=sets, questions=questions, tokens=12_345)
    tried = plane.deps.registry.items["tiny@2"].model_copy(update={"replay": verdict})
    await plane.deps.journal.change([tried])


@asynccontextmanager
async def running(plane: Plane) -> AsyncIterator[Plane]:
    await plane.start()
    try:
        yield plane
    finally:
        await plane.stop()


async def compare(plane: Plane, folder: Path, seen: Differences) -> None:
    async with opened(plane, folder) as (page, home):
        there = Compared(plane, page, home, seen)
        for view in (
            there.now, there.episodes, there.tasks, there.adapters, there.groups, there.runs, there.training, there.cases,
            there.cost, there.people,
        ):  # fmt: skip
            await view()
        seen.found += [f"{seen.store}: {error}" for error in page.errors]
    print(f"{seen.store}: {seen.compared} figures, {len(seen.found)} differences", flush=True)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=5000, help="of the store with many")
    parser.add_argument("--only", choices=("duckdb", "postgres", "many"))
    args = parser.parse_args()
    found: list[Differences] = []
    with tempfile.TemporaryDirectory() as folder, postgres_server() as server:
        for store in ("duckdb", "postgres", "many"):
            if args.only not in (None, store):
                continue
            place, engine = Path(folder) / store, await LoraEngine().start()
            place.mkdir()
            url = {"store": {"url": server.url}} if store == "postgres" else {}
            if store == "many":
                filled(place, args.episodes).close()
                plane = Plane(settings(place, engine), engine)
            else:
                plane = Plane(make_config(place, engine, **PLANE, **url), engine)
            async with running(plane):
                if store != "many":
                    await make_day(plane)
                found.append(Differences(store))
                await compare(plane, place, found[-1])
            await engine.stop()
    told = {d.store: {"figures": d.compared, "differences": len(d.found)} for d in found}
    print(json.dumps(told), flush=True)
    return 1 if any(d.found for d in found) else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
