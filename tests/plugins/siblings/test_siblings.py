"""More samples of agents' steps, in the engine's idle time (``explore = "siblings"``)."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from aiohttp import web
from tests.support.fake_engine import LoraEngine, dump
from tests.support.plane import until

from slipstream.contract import (
    REPLAY_OF_TAG,
    BatchLeaseIn,
    GroupLeaseIn,
    Score,
    ScoresIn,
    is_sibling,
    replay_of,
)
from slipstream.engines.engine import NEUTRAL_SAMPLING
from slipstream_siblings import idle

JUDGED = {"judge": {"function": "somewhere:score"}, "trainer": {"min_groups": 1}}
GREEDY = {"temperature": 0, "tools": [{"type": "function", "function": {"name": "find"}}]}


class SamplingEngine(LoraEngine):
    """Each reply has other tokens. ``agents``: calls of agents that it says are running."""

    def __init__(self) -> None:
        super().__init__()
        self.agents = self.waiting = 0
        self.exact = True
        self.asked: list[dict[str, Any]] = []
        self.numbers = itertools.count(10)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body: Any = await self._body(request)
        if isinstance(body, web.Response):
            return body
        if self.hold:
            await self.hold.wait()
        ids = body["kv_transfer_params"]["prompt_token_ids"]
        self.asked.append(body)
        token = next(self.numbers)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": f"reply {token}"},
            "finish_reason": "stop",
            "token_ids": [token],
            "logprobs": {"content": [{"token": "x", "logprob": -token / 10, "bytes": [120], "top_logprobs": []}]},
        }
        return web.json_response({"choices": [choice], "prompt_token_ids": ids if self.exact else [9]}, dumps=dump)

    def add_more(self, app: web.Application) -> None:
        super().add_more(app)
        app.router.add_get("/metrics", self.metrics)

    async def metrics(self, _: web.Request) -> web.Response:
        told = ("running", self.agents), ("waiting", self.waiting)
        return web.Response(text="".join(f'vllm:num_requests_{name}{{engine="0"}} {n}.0\n' for name, n in told))


@pytest.fixture
async def engine(monkeypatch):
    monkeypatch.setattr(idle, "IDLE_AFTER_S", 0.02)
    monkeypatch.setattr(idle, "SLOW_LOOK_S", 0.02)
    fake = await SamplingEngine().start()
    yield fake
    await fake.stop()


async def exploring(make_plane, **route):
    models = {"gpt-4o": {"trained": "tiny", "explore": "siblings", "explore_share": 1.0, "explore_samples": 3} | route}
    return await make_plane(models=models, **JUDGED)


async def siblings(plane, count: int = 1):
    """The siblings there are, once they are so many."""

    async def look():
        found = (await plane.ask("GET", "/episodes?split=sibling"))[1]["episodes"]
        return found if len(found) >= count else None

    return await until(look)


async def line(plane, stage: str):
    lines = (await plane.ask("GET", "/status"))[1]["funnel"]["lines"]
    return next(x for x in lines if (x["stage"], x["cause"]) == (stage, "siblings"))


def sampler(plane):
    return plane.control.plugins.parts["siblings"].sampler


def count(plane, outcome: str) -> float:
    return sampler(plane).metrics.siblings.labels(outcome)._value.get()


async def test_a_greedy_step_is_sampled_judged_and_trained_on_and_is_no_run_of_the_agents(make_plane, engine):
    plane = await exploring(make_plane)
    call = await plane.call("run", request=GREEDY, done=True, tags={"user": "ann"})
    found = await siblings(plane, 3)
    assert {e["id"] for e in found} == {f"{call}~0~{n}" for n in (1, 2, 3)}, "the greedy answer is none of them"
    assert {(e["split"], e["tags"]["user"], e["tags"]["sibling-of"], e["task"]) for e in found} == {
        ("sibling", "ann", "run", "t1")
    }
    asked = engine.asked[-1]
    assert (asked["temperature"], asked["tools"]) == (1.0, GREEDY["tools"])
    assert {name: asked[name] for name in NEUTRAL_SAMPLING} == NEUTRAL_SAMPLING, (
        "nothing is left to the engine's own sampling"
    )
    assert asked["kv_transfer_params"]["prompt_token_ids"] == [1, 2, 3], "the recorded prompt"

    store, now = plane.deps.store, plane.deps.now
    lease = await until(lambda: store.judging.lease(GroupLeaseIn(names=["judge"], worker="j"), now()))
    (group,) = lease.groups
    assert (group.kind, group.split, len(group.episodes)) == ("task", "sibling", 3)
    scores = [Score(episode=e.episode.id, name="judge", value=n / 2) for n, e in enumerate(group.episodes)]
    body = ScoresIn(lease=lease.lease, scores=scores).model_dump(mode="json")
    assert (await plane.ask("POST", f"/groups/{group.id}/scores", body))[0] == 200
    wanted = BatchLeaseIn(worker="t", model="tiny", min_groups=1, max_groups=4, max_wait=0)
    batch = await until(lambda: store.batches.lease(wanted, {"tiny": 0}, 0, now()))
    rows = batch.table.to_pylist()
    assert [(r["trainable"], r["prompt_ids"], r["temperature"]) for r in rows] == [(True, [1, 2, 3], 1.0)] * 3
    assert all(r["logprobs"] == pytest.approx([-r["completion_ids"][0] / 10]) for r in rows), "as they were sampled"
    assert sorted(r["reward"] for r in rows) == [0, 0.5, 1]

    status = (await plane.ask("GET", "/status"))[1]
    assert (status["episodes"], status["calls"], status["siblings"]) == ({"done": 1}, 1, 3)
    assert [e["id"] for e in (await plane.ask("GET", "/episodes"))[1]["episodes"]] == ["run"]
    assert len((await plane.ask("GET", "/episodes?split=sibling"))[1]["episodes"]) == 3
    assert store.statistics.success_by_adapter() == [] and store.statistics.rewards_by_source() == []
    assert {o.eid for o in store.outcomes.since("tiny", 0)} == {"-/run"}, "what the gate reads"
    assert (await plane.ask("GET", "/learning"))[1]["points"] == []


async def test_what_the_agent_saw_is_a_sample_if_it_was_one(make_plane, engine):
    plane = await exploring(make_plane, explore_samples=2)
    call = await plane.call("run", reply="seen", done=True, request={"temperature": 0.7, "top_p": 0.5, "top_k": 9})
    found = {e["id"]: e for e in await siblings(plane, 3)}
    detail = (await plane.ask("GET", f"/episodes/{call}~0~0?tokens=true"))[1]
    (own,) = detail["call_list"]
    assert own["reply"][0]["content"] == "seen" and own["trainable"] and own["kind"] == "sibling"
    assert (own["completion_ids"], own["logprobs"]) == ([[4, 5]], [[-0.5, -0.25]])
    sampling = own["sampling"]
    assert (sampling["temperature"], sampling["top_p"], sampling["top_k"]) == (0.7, 0.5, 9), "its own filter"
    assert len(found) == 3 and len({e["group"] for e in found.values()}) == 1


def without_ten(record):
    if "reply 11" in record["reply"]:
        raise ValueError
    return {name: text.replace("reply 10", "[GONE]") for name, text in record.items()}


async def test_what_redaction_would_change_is_no_sibling(make_plane, engine):
    plane = await exploring(make_plane, explore_samples=4)
    plane.config.proxy.redact = f"{__name__}:without_ten"
    await plane.call("run", request=GREEDY, done=True)
    kept = [(await plane.ask("GET", f"/episodes/{e['id']}"))[1]["call_list"] for e in await siblings(plane, 2)]
    assert sorted(call["reply"][0]["content"] for (call,) in kept) == ["reply 12", "reply 13"]
    assert count(plane, "redacted") == 2


async def test_steps_that_come_while_others_are_sampled_wait_for_none_of_them(make_plane, engine):
    plane = await exploring(make_plane)
    engine.hold = asyncio.Event()
    await plane.call("first", request=GREEDY, done=True)
    await until(lambda: sampler(plane).busy)
    for n in range(4):
        await plane.call(f"later-{n}", request=GREEDY, done=True)
    await until(lambda: sampler(plane).busy == 5)
    assert not sampler(plane).waiting
    engine.hold.set()
    assert len(await siblings(plane, 15)) == 15
    await until(lambda: not sampler(plane).busy)


async def test_agents_go_first_and_a_days_tokens_are_the_end(make_plane, engine):
    plane = await exploring(make_plane, explore_tokens=3)
    engine.agents = 1
    await plane.call("one", request=GREEDY)
    await asyncio.sleep(0.3)
    assert not engine.asked, "an agent's call runs"
    engine.agents = 0
    await siblings(plane, 3)
    for n in range(3):
        await plane.call(f"more{n}", request=GREEDY)
    await until(lambda: count(plane, "budget") == 3)
    assert count(plane, "sampled") == 3
    plane = await plane.again()
    await plane.call("later", request=GREEDY)
    await until(lambda: count(plane, "budget") == 1)


async def test_steps_together_keep_to_the_days_tokens_and_status_says_them(make_plane, engine):
    plane = await exploring(make_plane, explore_tokens=4)
    engine.hold = asyncio.Event()
    for n in range(8):
        await plane.call(f"run{n}", request=GREEDY | {"max_tokens": 2})
    await until(lambda: sampler(plane).busy)
    engine.hold.set()
    await until(lambda: count(plane, "budget") == 6)
    assert count(plane, "sampled") == 6, "3 after the first step, and one step more"
    await siblings(plane, 6)
    assert "6 of 4 tokens today" in (await line(plane, "groups"))["text"]
    plane = await plane.again()
    assert "6 of 4 tokens today" in (await line(plane, "groups"))["text"]


async def test_samples_that_are_thrown_away_count(make_plane, engine):
    plane = await exploring(make_plane, explore_tokens=3)
    engine.exact = False
    for n in range(3):
        await plane.call(f"run{n}", request=GREEDY)
    await until(lambda: count(plane, "budget") == 2)
    assert count(plane, "other_prompt") == 3
    assert "3 of 3 tokens today" in (await line(plane, "groups"))["text"]


async def test_another_prompt_is_never_taken_for_it(make_plane, engine):
    plane = await exploring(make_plane)
    engine.exact = False
    await plane.call("run", request=GREEDY)
    await until(lambda: count(plane, "other_prompt") == 3)
    await plane.call("held out", request=GREEDY, split="eval")
    await plane.call("another model", request=GREEDY, model="other")
    await asyncio.sleep(0.2)
    assert len(engine.asked) == 3
    assert (await plane.ask("GET", "/episodes?split=sibling"))[1]["episodes"] == []


async def test_who_forgets_a_run_forgets_what_a_replay_played_again(make_plane, engine):
    plane = await exploring(make_plane)
    await plane.call("run", request=GREEDY, done=True)
    for name, of in (("again", "run"), ("else", "other")):
        await plane.call(name, request=GREEDY, done=True, split="eval", tags={REPLAY_OF_TAG: replay_of("-", of)})

    async def stored() -> bool:
        return len((await plane.ask("GET", "/episodes?split=eval"))[1]["episodes"]) == 2

    await until(stored)
    await plane.ask("POST", "/forget", {"episodes": ["run"]})
    left = (await plane.ask("GET", "/episodes?split=eval"))[1]["episodes"]
    assert [e["id"] for e in left] == ["else"]


async def test_who_forgets_a_run_forgets_its_siblings(make_plane, engine):
    plane = await exploring(make_plane)
    await plane.call("run", request=GREEDY, done=True)
    await plane.call("other", request=GREEDY, done=True)
    await siblings(plane, 6)
    status, body = await plane.ask("POST", "/forget", {"episodes": ["run"]})
    assert status == 200 and body["forgotten"] == 1
    left = (await plane.ask("GET", "/episodes?split=sibling"))[1]["episodes"]
    assert {e["tags"]["sibling-of"] for e in left} == {"other"} and all(is_sibling(e["id"]) for e in left)


async def test_status_says_how_far_it_is_and_what_is_missing(make_plane, engine):
    plane = await exploring(make_plane, explore_tokens=3)
    await plane.call("run", request=GREEDY)
    await siblings(plane, 3)

    found = await line(plane, "groups")
    assert found["count"] == 3 and found["text"].startswith("3 siblings of agents' steps so far")


async def test_status_names_the_model_whose_calls_get_siblings_and_the_fix_of_others(make_plane, engine):
    plane = await exploring(make_plane)
    await plane.call("greedy", request=GREEDY, done=True)
    await plane.call(
        "pictures", request={"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, done=True
    )
    await until(lambda: sampler(plane).access.store.statistics.counts(0)["calls"] == 2)
    lines = {x["cause"]: x for x in (await plane.ask("GET", "/status"))[1]["funnel"]["lines"]}
    assert "(model gpt-4o: 100% of such calls get siblings, which train)" in lines["temperature 0"]["fix"]
    assert "; else greedy runs have nothing to compare" in lines["temperature 0"]["fix"], "calls to tiny get none"
    assert lines["images or other media"]["fix"] == "text alone can be trained on today"
    assert "unweighted_judge" not in lines, "siblings train by the judge's scores"


async def test_siblings_without_a_judge_are_reported(make_plane, engine):
    plane = await make_plane(models={"gpt-4o": {"trained": "tiny", "explore": "siblings"}})
    found = await line(plane, "judge")
    assert "no judge compares them" in found["text"] and found["fix"] == "set judge.model or judge.function"
