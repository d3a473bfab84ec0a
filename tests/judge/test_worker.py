from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import urllib.request

import pytest
from tests.support import until
from tests.support.groups import episode, group, quality_group
from tests.support.groups import run as made_run

from slipstream.client import AsyncClient
from slipstream.config import Config
from slipstream.contract import GroupKind, GroupLeaseIn
from slipstream.errors import ConfigError
from slipstream_judge.run import worker as worker_module
from slipstream_judge.run.worker import FAILURES_BEFORE_SLOWER, JudgeWorker, lease_seconds, run, worker_name


def configured(ruled, **more):
    judge = {"model": "openai/gpt-4o-mini", "api_base": ruled.url} | more
    return Config.model_validate({"judge": judge})


@contextlib.asynccontextmanager
async def working(control, config, count=1):
    """``count`` judges at work."""
    stop = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(control.url)) for _ in range(count)]
        workers = [JudgeWorker(config, c) for c in clients]
        tasks = [asyncio.create_task(w.run(stop)) for w in workers]
        try:
            yield workers[0] if count == 1 else workers
        finally:
            stop.set()
            assert await asyncio.gather(*tasks) == [0] * count


def values(control, name):
    return {s["episode"]: s["value"] for s in control.scored[name]}


def counted(worker, outcome):
    return worker.metrics.groups.labels(outcome)._value.get()


async def test_groups_are_leased_scored_and_posted(ruled, control):
    control.add_groups(*(quality_group(f"g{n}", [0.1, n / 10]) for n in range(2, 8)))
    async with working(control, configured(ruled)) as worker:
        await until(lambda: len(control.scored) == 6)
        assert values(control, "g5") == {"g5-0": 0.1, "g5-1": 0.5}
        await until(lambda: counted(worker, "scored") == 6)
    assert {(one["group"], bool(one["lease"])) for one in control.cached} == {(f"g{n}", True) for n in range(2, 8)}
    wanted = control.leases[0]
    assert wanted["names"] == ["judge"] and wanted["singles"] is True and wanted["seconds"] >= 120 * 6


async def test_several_copies_judge_each_group_once(ruled, control):
    ruled.latency = 0.02
    control.add_groups(*(quality_group(f"g{n}", [0.1, n / 40]) for n in range(5, 35)))
    async with working(control, configured(ruled, concurrency=2), count=3):
        await until(lambda: len(control.scored) == 30)
    assert len(control.posts) == 30 and len({w["worker"] for w in control.leases}) == 3


async def test_a_group_whose_judge_died_comes_back(ruled, control):
    control.add_groups(quality_group("g", [0.1, 0.9]))
    async with AsyncClient(control.url) as client:
        assert await client.lease_groups(GroupLeaseIn(worker="dead", seconds=0.5))
    async with working(control, configured(ruled)):
        await until(lambda: "g" in control.scored)


async def test_a_failure_is_told_and_the_group_is_judged_later(ruled, control):
    ruled.faults.extend(["half", "missing"])
    control.add_groups(quality_group("g", [0.1, 0.9]))
    async with working(control, configured(ruled)) as worker:
        await until(lambda: "g" in control.scored)
        assert counted(worker, "failed") == 1
    failed = control.posts[0][1]
    assert "missing" in failed["failed"] and failed["retry_after"] is None and failed["scores"] == []


async def test_a_group_that_always_fails_is_parked_and_the_others_are_not(ruled, control):
    bad, good = quality_group("bad", [0.1, 0.9], filler="POISON"), quality_group("good", [0.2, 0.8])
    plain = ruled.rule
    ruled.rule = lambda runs, shared: dict.fromkeys(runs, 7.0) if "POISON" in shared else plain(runs, shared)
    judge = ruled._judge
    ruled._judge = lambda read: {"scores": []} if "POISON" in read.shared else judge(read)
    control.add_groups(bad, good)
    async with working(control, configured(ruled)):
        await until(lambda: "bad" in control.parked and "good" in control.scored)
    assert [p[1]["retry_after"] for p in control.posts if p[0] == "bad"] == [None] * 4


async def test_a_judge_that_only_fails_goes_on_slowly_until_it_scores_again(ruled, control, caplog, monkeypatch):
    monkeypatch.setattr(worker_module, "SLOWER_PAUSE_S", (0.3, 60.0))
    judge, ruled._judge = ruled._judge, lambda _: {"scores": []}
    control.add_groups(*(quality_group(f"g{n}", [0.1, 0.9]) for n in range(60)))
    async with working(control, configured(ruled)) as worker:
        await until(lambda: worker.failures >= FAILURES_BEFORE_SLOWER)
        begun = len(ruled.requests)
        await asyncio.sleep(1.5)
        assert len(ruled.requests) - begun <= 2 * (worker.config.judge.concurrency + worker.ahead) + 2 * 3
        slow = len(ruled.requests)
        await asyncio.sleep(1.0)
        assert len(ruled.requests) - slow <= 4, "an answer and its repair, and the next group after a longer pause"
        assert "the judge failed on 8 groups in a row" in caplog.text
        ruled._judge = judge
        await until(lambda: control.scored and worker.failures == 0)
        await until(lambda: len(control.scored) + len(control.parked) == 60)


async def test_a_rate_limit_is_no_attempt(ruled, control):
    ruled.always = {"status": 429, "headers": {"Retry-After": "3600"}}
    control.add_groups(quality_group("g", [0.1, 0.9]))
    async with working(control, configured(ruled, timeout=30)) as worker:
        await until(lambda: counted(worker, "postponed") == 1)
    assert control.posts[0][1]["retry_after"] > 3500 and control.waiting["g"].group.attempts == 0


async def test_a_proxy_that_is_away_is_waited_for(ruled, control):
    control.broken, control.broken_path = 2, "scores"
    control.add_groups(quality_group("g", [0.1, 0.9]))
    async with working(control, configured(ruled)):
        await until(lambda: "g" in control.scored)
    assert len(ruled.requests) == 1


async def test_no_proxy_at_all(ruled):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{s.getsockname()[1]}"
    stop = asyncio.Event()
    async with AsyncClient(url) as client:
        worker = JudgeWorker(configured(ruled), client)
        task = asyncio.create_task(worker.run(stop))
        await until(lambda: worker._away)
        stop.set()
        assert await asyncio.wait_for(task, 60) == 0


async def test_over_budget_no_group_is_leased_and_it_is_said(ruled, control, caplog):
    control.add_groups(*(quality_group(f"g{n}", [0.1, n / 10]) for n in range(2, 8)))
    async with working(control, configured(ruled, calls_per_minute=2, concurrency=1, timeout=3)) as worker:
        await until(lambda: len(control.scored) == 2)
        await until(lambda: worker.metrics.waiting.labels("calls_per_minute")._value.get() == 1)
    assert len(ruled.requests) == 2
    assert "over budget: judge.calls_per_minute" in caplog.text
    assert all(w.group.attempts == 0 for w in control.waiting.values())


async def test_a_judge_told_to_stop_ends_what_it_began(ruled, control):
    ruled.latency = 0.3
    control.add_groups(quality_group("g", [0.1, 0.9]))
    async with working(control, configured(ruled)):
        await until(lambda: ruled.requests)
    assert "g" in control.scored


async def test_what_does_not_end_in_time_goes_back_at_once(ruled, control, monkeypatch):
    monkeypatch.setattr(worker_module, "STOP_GRACE_S", 0.05)
    ruled.always = {"sleep": 30}
    control.add_groups(quality_group("g", [0.1, 0.9]))
    async with working(control, configured(ruled)) as worker:
        await until(lambda: ruled.running)
    assert control.released == [worker.name] and control.waiting["g"].until == 0.0


async def test_singles_are_asked_for_unless_they_are_off(ruled, control):
    context = episode("c", made_run(0.4), judge=0.4)
    context.context = True
    control.add_groups(group("w", [episode("new", made_run(0.6), task=None), context], GroupKind.WINDOW, task=None))
    async with working(control, configured(ruled)):
        await until(lambda: "w" in control.scored)
    assert values(control, "w") == {"new": 0.6}
    async with working(control, configured(ruled, singles="off")):
        await until(lambda: control.leases[-1]["singles"] is False)


async def test_function_and_model_score_together_under_names_of_their_own(ruled, control, tmp_path, monkeypatch):
    (tmp_path / "both_scores.py").write_text(
        "def score(group):\n    return {e.episode.id: 0.25 for e in group.episodes}\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    control.add_groups(quality_group("g", [0.1, 0.9]))
    async with working(control, configured(ruled, function="both_scores:score")):
        await until(lambda: "g" in control.scored)
    assert control.leases[0]["names"] == ["judge", "function"]
    found = {(s["episode"], s["name"]): s["value"] for s in control.scored["g"]}
    assert found == {("g-0", "judge"): 0.1, ("g-1", "judge"): 0.9, ("g-0", "function"): 0.25, ("g-1", "function"): 0.25}


async def test_audits_and_the_agent_s_own_reward_are_metrics(ruled, control):
    made = group("g", [episode(f"e{n}", made_run(q), reward=q) for n, q in enumerate([0.1, 0.9, 0.5])])
    control.add_groups(made)
    async with working(control, configured(ruled, audit_share=1.0, audit_model="openai/second")) as worker:
        await until(lambda: control.events)
        assert worker.metrics.agreement._value.get() == pytest.approx(1.0)
        assert worker.metrics.agent_correlation._value.get() == pytest.approx(1.0)
    assert {r["model"] for r in ruled.requests} == {"gpt-4o-mini", "second"}
    assert control.events[0]["kind"] == "judge" and control.events[0]["data"]["agreement"] == pytest.approx(1.0)


async def test_run_serves_metrics_and_ends(ruled, control):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    stop = asyncio.Event()
    control.add_groups(quality_group("g", [0.1, 0.9]))
    async with AsyncClient(control.url) as client:
        task = asyncio.create_task(run(configured(ruled, metrics_port=port), client, stop))
        await until(lambda: "g" in control.scored)
        text = await asyncio.to_thread(
            lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        )
        stop.set()
        assert await task == 0
    for name in (
        "slipstream_judge_groups_total",
        "slipstream_judge_tokens_total",
        "slipstream_judge_cache_hit_rate",
        "slipstream_judge_calls_total",
    ):
        assert name in text


async def test_a_wrong_configuration_is_told_before_anything_is_leased(control):
    async with AsyncClient(control.url) as client:
        for judge in ({}, {"function": "no_such_module:f"}, {"model": "m", "rubric": "absent.md"}):
            with pytest.raises(ConfigError):
                JudgeWorker(Config.model_validate({"judge": judge}), client)
    assert control.leases == []


def test_lease_and_name():
    assert lease_seconds(Config.model_validate({"judge": {"timeout": 1000, "votes": 9}})) == 3600
    assert 60 <= lease_seconds(Config.model_validate({"judge": {"timeout": 1}})) <= 120
    assert worker_name() != worker_name()
    GroupLeaseIn(worker=worker_name())


async def test_without_quota_no_group_is_leased_until_the_next_question(ruled, control, monkeypatch):
    monkeypatch.setattr("slipstream_judge.model.llm.QUOTA_PAUSES_S", (0.5, 1.0))
    monkeypatch.setattr("slipstream_judge.model.llm.SLOW_SERVER_RETRY_S", 0.2)
    ruled.always = {"status": 429, "body": "insufficient_quota"}
    control.add_groups(*(quality_group(f"g{n}", [0.1, n / 10]) for n in range(2, 8)))
    async with working(control, configured(ruled, concurrency=1)) as worker:
        await until(lambda: worker.reporter.last_error)
        before = len(ruled.requests)
        await asyncio.sleep(2.2)
        assert "insufficient_quota" in worker.reporter.last_error
        assert len(ruled.requests) - before <= 4, "a question after each pause, not one a group"
        ruled.always = None
        await until(lambda: len(control.scored) == 6)
    assert worker.reporter.last_error is None
