"""The judge against the real control plane and its store."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tests.support import until
from tests.support.fake_engine import LoraEngine
from tests.support.groups import said
from tests.support.plane import Plane, make_config

from slipstream.client import AsyncClient
from slipstream.config import Config
from slipstream.settings import JudgeConfig
from slipstream_judge.run.worker import JudgeWorker
from slipstream_trust.judgement import fetch
from slipstream_trust.rerun import rerun

WEIGHTS = {"weights": {"judge": 1.0}}


async def stopped(plane):
    """What is tested here is over by then: a slow end of the control plane is its own tests' concern."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(plane.stop(), 30)


@pytest.fixture
async def make_plane(tmp_path):
    engine = await LoraEngine().start()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(engine.stop)

        async def make(**sections):
            plane = await Plane(make_config(tmp_path, engine, **sections), engine).start()
            stack.push_async_callback(stopped, plane)
            return plane

        yield make


@contextlib.asynccontextmanager
async def connected(plane, scopes=("judge",)):
    async with AsyncClient(str(plane.client.make_url(""))) as client:
        client.http.headers.update(plane.as_(scopes=list(scopes)))
        yield client


@contextlib.asynccontextmanager
async def working(plane, ruled, **judge):
    config = Config.model_validate({"judge": {"model": "openai/ruled", "api_base": ruled.url} | judge})
    stop = asyncio.Event()
    async with connected(plane) as client:
        worker = JudgeWorker(config, client)
        task = asyncio.create_task(worker.run(stop))
        try:
            yield worker
        finally:
            stop.set()
            assert await task == 0


async def finished(plane, task, qualities):
    names = [f"{task or 'single'}-{n}" for n in range(len(qualities))]
    for name, quality in zip(names, qualities, strict=True):
        await plane.call(name, task=task, text=f"QUALITY {quality}", done=True)
    return names


def reward_of(plane, name, wanted):
    async def look():
        status, body = await plane.ask("GET", f"/episodes/{name}")
        return body if status == 200 and any(abs(r["value"] - wanted) < 1e-9 for r in body["rewards"]) else None

    return look


async def test_a_group_s_scores_are_its_training_rewards(make_plane, ruled):
    plane = await make_plane(groups={"size": 3}, reward=WEIGHTS)
    names = await finished(plane, "t", [0.2, 0.6, 0.9])
    async with working(plane, ruled, votes=2):
        seen = await until(reward_of(plane, names[2], 0.9))
    assert seen["reward"] == pytest.approx(0.9)
    row = seen["rewards"][0]
    assert (row["name"], row["source"]) == ("judge", "judge") and row["reason"]
    assert row["meta"]["model"] == "openai/ruled" and row["meta"]["votes"] == 2 and row["meta"]["rubric"]
    for name, quality in zip(names, (0.2, 0.6), strict=False):
        assert (await plane.ask("GET", f"/episodes/{name}"))[1]["reward"] == pytest.approx(quality)


async def test_a_judgement_is_shown_as_it_is_stored(make_plane, ruled):
    plane = await make_plane(groups={"size": 2}, reward=WEIGHTS)
    names = await finished(plane, "t", [0.2, 0.6])
    async with working(plane, ruled, votes=2):
        seen = await until(reward_of(plane, names[1], 0.6))
    async with connected(plane, ("judge", "admin")) as client:
        found = await fetch(client, seen["group"], JudgeConfig(), "judge")
    assert [(r.episode, r.score, r.votes) for r in found.runs] == [
        (names[0], 0.2, [0.2, 0.2]),
        (names[1], 0.6, [0.6, 0.6]),
    ]
    assert found.meta["model"] == "openai/ruled" and found.runs[1].reason and found.prompt.distinct_runs == 2


async def test_a_stream_of_untagged_runs_is_judged_a_group_at_a_time(make_plane, ruled):
    """What keeps coming back is one task; the rest is a group of likeness. One call judges either."""
    plane = await make_plane(groups={"size": 4}, reward=WEIGHTS)
    for n in range(16):
        messages = [said("user", "play" if n % 2 else f"another {n}"), said("assistant", f"QUALITY 0.{n % 7}")]
        await plane.call(f"s{n}", task=None, request={"messages": [*messages, said("user", "go on")]}, done=True)
    async with working(plane, ruled):
        seen = await until(reward_of(plane, "s11", 0.4))
    assert seen["rewards"][0]["meta"]["mode"] == "group" and seen["task"] is None
    assert len(ruled.requests) <= 3, "a call for each group"


async def test_equal_groups_come_out_of_the_store_s_cache(make_plane, ruled):
    plane = await make_plane(groups={"size": 2}, reward=WEIGHTS)
    first = await finished(plane, "t1", [0.2, 0.6])
    async with working(plane, ruled) as worker:
        await until(reward_of(plane, first[1], 0.6))
        second = await finished(plane, "t2", [0.2, 0.6])
        seen = await until(reward_of(plane, second[1], 0.6))
        assert len(ruled.requests) == 1 and worker.metrics.cache.labels("hit")._value.get() == 1
    assert seen["rewards"][0]["meta"]["cached"] is True


async def test_a_group_that_always_fails_is_parked_and_tried_again_when_asked(make_plane, ruled):
    plane = await make_plane(groups={"size": 2}, reward=WEIGHTS, judge={"max_attempts": 2})
    names = await finished(plane, "t", [0.2, 0.6])
    ruled.always = "half"
    async with working(plane, ruled), connected(plane, ("judge", "admin")) as client:
        parked = await until(client.parked)
        assert len(parked) == 1
        ruled.always = None
        await client.retry_group(parked[0].id)
        await until(reward_of(plane, names[1], 0.6))


async def test_judging_again_adds_rows(make_plane, ruled):
    plane = await make_plane(groups={"size": 2}, reward=WEIGHTS)
    names = await finished(plane, "t", [0.2, 0.6])
    async with working(plane, ruled):
        await until(reward_of(plane, names[1], 0.6))
    ruled.rule = lambda runs, shared: {r: 0.75 if "QUALITY 0.6" in text else 0.25 for r, text in runs.items()}
    config = Config.model_validate({"judge": {"model": "openai/ruled", "api_base": ruled.url}})
    async with connected(plane, ("judge", "reward", "admin")) as client:
        found = await rerun(config, client, 0.0, rubric="Be milder.")
    assert (found["scored"], found["failed"]) == (2, 0)
    seen = await until(reward_of(plane, names[1], 0.75))
    assert seen["reward"] == pytest.approx(0.75)
