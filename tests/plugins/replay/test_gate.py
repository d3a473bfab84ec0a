"""New versions on recorded steps, before anybody meets them (``gate.mode = "replay"``)."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from tests.support.browser import CHROMIUM
from tests.support.fake_engine import LoraEngine, dump
from tests.support.page_views import opened
from tests.support.plane import register, state, until
from tests.support.replayed import recorded, tool_message

from slipstream.contract import GroupLeaseIn, Score, ScoresIn
from slipstream.engines import DEFAULT_ENGINE
from slipstream.engines.engine import EngineFacts
from slipstream_replay.comparison import Questions
from slipstream_replay.server import gate
from slipstream_replay.server.gate import spread
from slipstream_replay.steps import ReplayBudget, case_of
from slipstream_siblings import idle
from slipstream_siblings.idle import IdleTurns

CASES = 30


class ToolEngine(LoraEngine):
    """It answers with the tool ``find``. A version in ``spoiled`` uses another tool for some tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.spoiled: set[str] = set()
        self.agents = 0
        """Calls of agents that it says are running."""
        self.replayed: list[str] = []
        """Models that were asked, in order."""
        self.exact = True

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body: Any = await self._body(request)
        if isinstance(body, web.Response):
            return body
        if self.hold:
            await self.hold.wait()
        model, task = body["model"], body["messages"][-1]["content"]
        self.replayed.append(model)
        message = tool_message("find", name=task)
        if model in self.spoiled:
            message = tool_message("drop", name=task) if task.endswith(("3", "7")) else {"content": "no"}
        ids = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
        return web.json_response(
            {"choices": [choice], "usage": {"total_tokens": 10}, "prompt_token_ids": ids if self.exact else [1]},
            dumps=dump,
        )

    def add_more(self, app: web.Application) -> None:
        super().add_more(app)
        app.router.add_get("/metrics", self.metrics)

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            text=f'vllm:num_requests_running{{engine="0"}} {self.agents}.0\nvllm:num_requests_waiting{{engine="0"}} 0.0\n'
        )


@pytest.fixture
async def engine(monkeypatch):
    monkeypatch.setattr(idle, "IDLE_AFTER_S", 0.02)
    monkeypatch.setattr(idle, "SLOW_LOOK_S", 0.02)
    fake = await ToolEngine().start()
    yield fake
    await fake.stop()


REPLAY = {"samples": 1, "sets": ["mine"]}


def case(n: int) -> dict[str, Any]:
    """A rewarded run that used the tool."""
    found = recorded(f"e{n}")
    call = found.call_list[0]
    call.trained, call.prompt_ids, call.reply = (
        "tiny",
        [1, n],
        [tool_message("find", name=call.messages[-1]["content"])],
    )
    return found.model_dump(mode="json")


async def with_cases(make_plane, count: int = CASES, **replay):
    plane = await make_plane(gate={"mode": "replay", "holdout": 0.1, "replay": REPLAY | replay})
    status, body = await plane.ask("POST", "/cases/mine/import", {"episodes": [case(n) for n in range(count)]})
    assert status == 200, body
    return plane


async def decided(plane, n: int) -> dict[str, Any]:
    async def over():
        found = await state(plane, n)
        return found if found["state"] != "loading" or (found["replay"] or {}).get("outcome") == "undecided" else None

    return await until(over, 30)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt install chromium)")
async def test_the_page_shows_both_replies_and_the_cases(make_plane, engine, tmp_path):
    plane = await with_cases(make_plane)
    engine.spoiled = {"tiny@1"}
    await register(plane, 1, wait=0)
    await decided(plane, 1)
    async with opened(plane, tmp_path, "#/adapters?adapter=tiny%401") as (page, home):
        await page.holds("On recorded steps")
        await page.holds("whole runs")
        sides = "[...document.querySelectorAll('article h4')].slice(0, 2).map(h => h.textContent)"
        assert await page.js(sides) == ["tiny@1", "tiny"]
        assert await page.accessibility() == []
        await page.go(home + "#/cases/mine")
        await page.holds("e17")
        assert await page.accessibility() == [] and page.errors == []


async def test_a_version_that_fails_is_refused_with_its_worst_cases_and_a_good_one_goes_on_trial(make_plane, engine):
    plane = await with_cases(make_plane)
    engine.spoiled = {"tiny@1"}
    await register(plane, 1, wait=0)
    lives = [plane.deps.live.value["models"]["tiny"]]
    refused = await decided(plane, 1)
    lives.append(plane.deps.live.value["models"]["tiny"])
    assert refused["state"] == "refused" and refused["replay"]["outcome"] == "refused", refused
    assert "worse than tiny on recorded steps: tool calls -" in refused["reason"]
    assert all(found == {"base": "tiny", "live": "tiny", "arms": []} for found in lives)  # nobody met it
    _, shown = await plane.ask("GET", "/adapters/tiny@1/replay")
    assert len(shown["worst"]) >= 3 and "whole runs" in shown["limits"]
    first = shown["worst"][0]
    assert (first["candidate"], first["control"]) == (0.0, 1.0) and '"find"' in first["control_reply"]
    assert first["candidate_reply"] == "no" or '"drop"' in first["candidate_reply"]
    # what was made from it goes with it
    _, body = await register(plane, 2, wait=0, parent="tiny@1")
    assert body["state"] == "retired" and "made from tiny@1" in body["reason"]
    # a good one begins with what is known: nothing speaks against it, so the control keeps the least share
    await register(plane, 3, parent=None)
    good = await decided(plane, 3)
    assert (good["state"], good["replay"]["outcome"]) == ("candidate", "passed"), good
    assert good["replay"]["exact"] == 1.0 and good["replay"]["tokens"] == CASES * 20
    assert [q["question"] for q in good["replay"]["questions"]] == ["guards", "tool calls"]
    assert plane.deps.live.value["models"]["tiny"]["arms"] == [["tiny", "control", 0.1]]

    async def audited():
        _, audit = await plane.ask("GET", "/audit")
        return {("replay refused", "tiny@1"), ("replay passed", "tiny@3")} <= {
            (e["action"], e["target"]) for e in audit["entries"] if e["name"] == "gate"
        }

    await until(audited)
    # forgetting reaches what is shown
    await plane.ask("POST", "/forget", {"episodes": [first["episode"]]})
    _, shown = await plane.ask("GET", "/adapters/tiny@1/replay")
    assert first["episode"] not in {p["episode"] for p in shown["worst"]}
    # a person may decide otherwise
    await plane.ask("POST", "/adapters/tiny@1/promote", {"reason": "by hand"})
    await until(lambda: plane.deps.live.value["models"]["tiny"]["live"] == "tiny@1")


async def test_no_cases_are_no_evidence(make_plane, engine):
    plane = await with_cases(make_plane, 3)
    await register(plane, 1)
    found = await decided(plane, 1)
    assert found["state"] == "candidate" and found["replay"]["outcome"] == "undecided"
    assert "3 cases cannot show even a total loss" in found["replay"]["reason"]
    plane.deps.config.gate.replay.sets.append("must-pass")
    await register(plane, 2)
    assert "must-pass had no cases when it began" in (await decided(plane, 2))["replay"]["reason"]
    plane.deps.config.gate.replay.by = "nowhere:score"
    await register(plane, 3)
    assert "gate.replay.by = 'nowhere:score'" in (await decided(plane, 3))["replay"]["reason"]
    assert plane.deps.live.value["models"]["tiny"]["arms"] == [["tiny", "control", 0.3]]  # as without a replay


async def test_without_a_verdict_it_can_be_held_for_a_person_and_a_newer_one_takes_its_place(make_plane, engine):
    plane = await with_cases(make_plane, undecided="hold", tokens=100)
    await register(plane, 1, wait=0)
    found = await decided(plane, 1)
    assert found["state"] == "loading" and "budget of 100 tokens is spent" in found["reason"]
    told = (await plane.ask("GET", "/status"))[1]["waiting"]
    assert any("tiny@1 waits for a person: no verdict of the replay" in line for line in told)
    await register(plane, 2, wait=0)
    await until(lambda: plane.deps.rollout.registry.items["tiny@1"].state == "retired")
    await decided(plane, 2)
    await plane.ask("POST", "/adapters/tiny@2/promote", {})
    await until(lambda: plane.deps.live.value["models"]["tiny"]["live"] == "tiny@2")


async def test_a_restart_goes_on_and_newer_versions_wait(make_plane, engine, monkeypatch):
    monkeypatch.setattr(gate, "KEEP_EVERY", 0.0)
    plane = await with_cases(make_plane)
    await register(plane, 1, wait=0)
    await until(lambda: len(engine.replayed) >= CASES)
    await plane.again()
    await register(plane, 2, wait=0)
    assert (await decided(plane, 1))["replay"]["outcome"] == "passed"
    assert 2 * CASES <= engine.replayed.count("tiny") + engine.replayed.count("tiny@1") < 3.5 * CASES
    sets = (await decided(plane, 2))["replay"]["sets"]
    assert sets == [{"name": "mine", "version": 1, "cases": CASES, "missing": 0}]


def test_a_replay_goes_on_in_the_round_where_it_stopped() -> None:
    def progress() -> gate.ReplayProgress:
        questions = Questions(gate.detect, 0.01, "f", lambda _, message: message["score"])
        return gate.ReplayProgress("m@1", {"mine": (1, [])}, {"mine": questions}, ReplayBudget(), 0.0)

    def take(of: gate.ReplayProgress, n: int) -> None:
        one = case_of(recorded(f"e{n}"))
        sides = [[{"message": {"content": "x", "score": x}}] for x in (0.4 + 0.03 * (n % 10), 0.65)]
        one.steps[0].candidate, one.steps[0].control = sides
        of.take(["mine"], one)

    first = progress()
    for n in range(20):
        take(first, n)
    assert not first.worse() and first.again()
    for n in range(7):
        take(first, n)
    assert (first.round, first.seen, first.answered["mine"]) == (1, 7, 20)
    second = progress()
    second.load(json.loads(json.dumps(first.dump())))
    for n in range(7, 20):
        take(first, n)
        take(second, n)
    assert [t.evidence for _, t in first.tests()] == [t.evidence for _, t in second.tests()]
    assert [len(t.pairs) for _, t in second.tests()] == [20, 20] and second.round == 1


async def test_agents_go_first(make_plane, engine):
    """While an agent's call runs, nothing is asked, and what is asked is taken back when one comes."""
    plane = await with_cases(make_plane)
    engine.agents = 1
    await register(plane, 1, wait=0)
    await until(lambda: plane.deps.rollout.rehearsals.current.running)
    await asyncio.sleep(0.15)
    assert engine.replayed == []
    plane.deps.rollout.publisher.publish()
    assert "tiny@1" in engine.adapters and plane.deps.live.value["engines"][0]["loaded"] == []  # nor by its name
    engine.hold = asyncio.Event()
    engine.agents = 0
    seen = len(engine.seen)
    await until(lambda: len(engine.seen) > seen)
    turns = plane.deps.rollout.rehearsals.current._turns
    await plane.client.post("/internal/pins", json=[{"key": "-", "episode": "new", "model": "tiny"}])
    await until(lambda: turns.taken_back)
    engine.hold.set()
    engine.hold = None
    assert (await decided(plane, 1))["replay"]["outcome"] == "passed"
    await until(lambda: plane.deps.live.value["engines"][0]["loaded"] == ["tiny@1"])


async def test_a_judge_compares_through_its_own_queue(make_plane, engine):
    plane = await with_cases(make_plane, by="judge")
    engine.spoiled = {"tiny@1"}
    await register(plane, 1, wait=0)
    judged = 0

    async def judge():
        nonlocal judged
        status, lease = await plane.ask("POST", "/groups/lease", GroupLeaseIn(worker="j", limit=9).model_dump())
        for group in lease["groups"] if status == 200 else ():
            assert group["both_orders"] and group["split"] == "eval"
            judged += 1
            found = [
                Score(episode=e["episode"]["id"], value=float("find" in str(e["calls"][0]["reply"])))
                for e in group["episodes"]
            ]
            body = ScoresIn(lease=lease["lease"], scores=found).model_dump()
            assert (await plane.ask("POST", f"/groups/{group['id']}/scores", body))[0] == 200
        return (await state(plane, 1))["state"] == "refused"

    await until(judge, 30)
    assert "judge -1.000" in (await state(plane, 1))["reason"] and judged >= 10
    _, listed = await plane.ask("GET", "/groups")
    assert not [g for g in listed["groups"] if g["id"].startswith("replay-")]  # nothing of it is stored


async def test_sets_that_fill_themselves(make_plane, engine):
    plane = await with_cases(make_plane, sets=["auto-sample", "auto-labelled", "auto-rollback"], cases=12)
    for n in range(16):
        message = tool_message("find", name=f"task {n}")
        await plane.call(f"e{n}", task=f"t{n % 5}", text=f"task {n}", tags={"customer": f"c{n % 3}"}, message=message)
    await plane.seen("e15")
    for n in range(16):
        await plane.ask("POST", f"/episodes/e{n}/done", {})
    await plane.ask("POST", "/episodes/e4/rewards", {"name": "taste", "value": 0.5, "source": "human"})
    await register(plane, 1)
    await decided(plane, 1)
    for n in range(40, 43):
        await plane.call(f"e{n}", adapter="tiny@1", arm="live", chances="live=0.9 control=0.1 tried=tiny@1")
        await plane.ask("POST", f"/episodes/e{n}/rewards", {"value": (n - 40) / 10})
        await plane.seen(f"e{n}")
    await plane.ask("POST", "/adapters/tiny@1/rollback", {})
    await register(plane, 2)
    found = await decided(plane, 2)
    sizes = {s["name"]: s["cases"] for s in found["replay"]["sets"]}
    assert sizes == {"auto-sample": 12, "auto-labelled": 1, "auto-rollback": 1}
    _, page = await plane.ask("GET", "/cases/auto-rollback")
    assert [c["episode"] for c in page["cases"]] == ["e40"]  # what spoke most against it
    _, page = await plane.ask("GET", "/cases/auto-sample")
    assert {c["tags"]["customer"] for c in page["cases"]} == {"c0", "c1", "c2"} and len(
        {c["task"] for c in page["cases"]}
    ) == 5


def test_the_engines_load() -> None:
    text = '# HELP\nvllm:num_requests_running{a="b"} 2.0\nvllm:num_requests_running{a="c"} 1\nvllm:num_requests_waiting{a="b"} 4\n'
    assert DEFAULT_ENGINE.open_requests(text) == (3.0, 4.0) and DEFAULT_ENGINE.open_requests("python_gc 1\n") is None


async def test_beside_a_crowd_one_request_goes_and_an_engine_that_says_nothing_gets_one() -> None:
    awake = asyncio.Event()
    awake.set()
    told: list[tuple[float, float] | None] = [(40.0, 0.0)]

    async def load() -> tuple[float, float] | None:
        return told[0]

    engines: Any = SimpleNamespace(engines=[SimpleNamespace(facts=EngineFacts())])
    turns = IdleTurns(load, awake)
    for told[0], room in (((40.0, 0.0), 1), ((40.0, 3.0), 0), (None, 1), ((2.0, 0.0), 0)):  # noqa: B007
        await turns._look()
        await turns._look()
        assert turns._room == room, told
    turns._busy_until = time.monotonic()
    told[0] = (0.0, 0.0)

    async def judged(pace: float) -> int:
        for _ in range(max(idle.JUDGED_REQUESTS, turns._most)):
            turns._note(pace)
        await turns._look()
        return turns._room

    await turns._look()
    assert turns._room == 1  # nothing is known of what more do to each other
    assert [await judged(0.01) for _ in range(6)] == [2, 4, 8, 16, 32, idle.AT_ONCE]
    assert [await judged(0.013), await judged(0.01)] == [16, 16]
    tries = [await judged(0.01) for _ in range(2 * idle.RETRY_JUDGEMENTS)]
    assert (tries[idle.RETRY_JUDGEMENTS], tries[-1]) == (16, 32)  # what failed once is tried half as often
    turns._at_once = lambda: idle.at_once(engines)
    for engines.engines[0].facts.plugin["device"], room in (("cuda", 32), ("cpu", 1)):
        await turns._look()
        assert turns._room == room
    awake.clear()
    await turns._look()
    assert turns._room == 0


async def test_agents_who_never_rest_get_one_request_beside_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, awake = [1000.0], asyncio.Event()
    awake.set()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    waiting = [0.0]

    async def load() -> tuple[float, float] | None:
        return 8.0, waiting[0]

    turns = IdleTurns(load, awake, idle.BUSY_AGENTS_TIMEOUT_S)
    for after, queued, room in ((1.0, 0.0, 0), (idle.BUSY_AGENTS_TIMEOUT_S, 0.0, 1), (1.0, 1.0, 0), (1.0, 0.0, 1)):
        clock[0] += after
        waiting[0] = queued
        turns.agents_came()
        await turns._look()
        assert turns._room == room, (after, queued)


def test_every_value_of_every_tag_has_its_part() -> None:
    episodes = [
        recorded(f"e{n}").model_copy(update={"tags": {"user": str(n), "team": "rare" if n == 99 else "usual"}})
        for n in range(100)
    ]
    chosen = spread(episodes, 10)
    assert len(chosen) == 10 and "e99" in {e.id for e in chosen}
    assert {e.id for e in spread(episodes[::-1], 10)} == {e.id for e in chosen}
