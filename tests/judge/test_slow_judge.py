"""A judge that is slower than the agents, hangs, answers garbage or is killed: what it can do counts, and no group is lost by it."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest
from tests.support import process, slipstream, wait_for
from tests.support.groups import episode, group, quality_group, run
from tests.support.ruled_judge import RuledJudge

from slipstream.client import AsyncClient
from slipstream.config import Config
from slipstream.contract import GroupKind
from slipstream_judge.run import worker as worker_module
from slipstream_judge.run.worker import JudgeWorker

BUDGET = 40


def config_of(ruled: RuledJudge, **more: object) -> Config:
    return Config.model_validate({"judge": {"model": "openai/gpt-4o-mini", "api_base": ruled.url} | more})


def untagged(name: str) -> object:
    runs = [episode(f"{name}-{n}", run(n / 4, id=f"{name}-{n}"), task=None) for n in range(4)]
    return group(name, runs, GroupKind.LIKE, task=None)


@pytest.mark.slow
async def test_a_slow_judge_with_a_budget_scores_the_newest_groups_before_they_are_lost(ruled, control):
    """20 untagged groups a second, a judge of 1 s latency, 40 calls a minute, and a group is lost after 4 s."""
    ruled.latency, control.lost_after = 1.0, 4.0
    late: list[str] = []
    stop = asyncio.Event()
    async with AsyncClient(control.url) as client:
        worker = JudgeWorker(config_of(ruled, calls_per_minute=BUDGET), client)
        task = asyncio.create_task(worker.run(stop))
        completed: dict[str, float] = {}
        for n in range(240):
            name = f"g{n}"
            completed[name] = time.time()
            control.add_groups(untagged(name))
            await asyncio.sleep(0.05)
            late += [
                g for g in control.scored if g in completed and time.time() - completed.pop(g) > control.lost_after
            ]
        stop.set()
        assert await task == 0
    assert len(ruled.requests) <= BUDGET, "one call for each group"
    in_time = len(control.scored) - len(late)
    assert in_time >= 0.95 * BUDGET, (len(control.scored), late)


async def test_reports_say_rate_queue_and_budget(ruled, control, monkeypatch):
    monkeypatch.setattr(worker_module, "SYNC_INTERVAL_S", 0.1)
    control.add_groups(*(quality_group(f"g{n}", [0.1, n / 10]) for n in range(2, 8)))
    stop = asyncio.Event()
    async with AsyncClient(control.url) as client:
        worker = JudgeWorker(config_of(ruled, calls_per_minute=2, votes=1, timeout=3), client)
        task = asyncio.create_task(worker.run(stop))
        await asyncio.to_thread(
            wait_for, lambda: control.reports[-1]["waits_for"] and control.reports[-1]["scored"] == 2, 30
        )
        await asyncio.to_thread(wait_for, lambda: worker.metrics.queue._value.get() == 4, 30)
        stop.set()
        assert await task == 0
    last = control.reports[-1]
    assert (last["waits_for"], last["scored"], last["worker"]) == ("judge.calls_per_minute", 2, worker.name)
    assert last["waits_until"] > time.time() and last["groups_per_minute"] > 0 and last["cost_per_group"] > 0
    assert all(w.group.attempts == 0 and w.lease is None for w in control.waiting.values()), "none was held"


async def test_a_model_that_hangs_gives_the_groups_back(ruled, control):
    ruled.always = {"sleep": 60}
    control.add_groups(quality_group("g", [0.1, 0.9]))
    stop = asyncio.Event()
    async with AsyncClient(control.url) as client:
        worker = JudgeWorker(config_of(ruled, timeout=0.3), client)
        task = asyncio.create_task(worker.run(stop))
        await asyncio.to_thread(wait_for, lambda: control.posts and worker.reporter.failed, 60)
        assert "Timeout" in control.posts[0][1]["failed"] and worker.reporter.failed == 1
        ruled.always = None
        await asyncio.to_thread(wait_for, lambda: "g" in control.scored, 60)
        stop.set()
        assert await task == 0


async def test_a_model_that_answers_garbage_parks_a_group_and_says_why(ruled, control):
    ruled.always = "prose"
    control.add_groups(quality_group("g", [0.1, 0.9]))
    stop = asyncio.Event()
    async with AsyncClient(control.url) as client:
        worker = JudgeWorker(config_of(ruled), client)
        task = asyncio.create_task(worker.run(stop))
        await asyncio.to_thread(wait_for, lambda: "g" in control.parked, 60)
        stop.set()
        assert await task == 0
    assert worker.reporter.failed == 4 and "held no JSON object" in worker.reporter.last_error


def test_a_killed_judge_leaves_its_groups_to_the_next(ruled, control, tmp_path):
    ruled.always = {"sleep": 30}
    control.add_groups(quality_group("g", [0.1, 0.9]))
    flags = ["--set", "judge.model=openai/gpt-4o-mini", "--set", f"judge.api_base={ruled.url}"]
    argv = slipstream("judge", "--url", control.url, *flags)
    with process(argv, tmp_path / "first.log") as first:
        wait_for(lambda: ruled.running or first.poll() is not None, 90)
        assert first.poll() is None, (tmp_path / "first.log").read_text()
        first.kill()
        first.wait()
    held = control.waiting["g"]
    assert held.lease and held.until > time.time() and not control.posts
    held.until, ruled.always = 0.0, None  # the lease runs out
    with process(argv, tmp_path / "second.log") as second:
        wait_for(lambda: "g" in control.scored or second.poll() is not None, 90)
        assert "g" in control.scored, (tmp_path / "second.log").read_text()
    assert sys.executable in argv[0] and control.waiting == {}
