from __future__ import annotations

import asyncio
import logging

import pytest

from slipstream.client import AsyncClient
from slipstream.settings import JudgeConfig
from slipstream.shared.clock import DAY_S
from slipstream_judge.model.budget import Budget, OverBudget
from slipstream_judge.model.metrics import JudgeMetrics


class Clock:
    def __init__(self, now=10 * DAY_S + 100.0):
        self.now = now

    def __call__(self):
        return self.now


def make(clock, client=None, **limits):
    return Budget(JudgeConfig(model="m", **limits), JudgeMetrics(), client, clock)


async def test_without_budgets_nothing_waits():
    budget = make(Clock())
    await budget.take(10**9, 0)
    assert budget.wait(10**9) is None


async def test_calls_a_minute():
    clock = Clock()
    budget = make(clock, calls_per_minute=2)
    for _ in range(2):
        await budget.take(1, clock.now)
    assert budget.wait() == ("calls_per_minute", 60.0)
    with pytest.raises(OverBudget, match="calls_per_minute"):
        await budget.take(1, clock.now + 30)
    clock.now += 60
    assert budget.wait() is None


async def test_tokens_a_day_count_what_is_under_way():
    clock = Clock()
    budget = make(clock, tokens_per_day=100)
    await budget.take(60, clock.now)
    with pytest.raises(OverBudget, match="tokens_per_day") as caught:
        await budget.take(60, clock.now + 1000)
    assert caught.value.seconds == DAY_S - 100
    budget.spend(60, 30, None)
    await budget.take(60, clock.now)
    budget.spend(60, 75, None)
    assert budget.wait()[0] == "tokens_per_day"
    clock.now += DAY_S
    assert budget.wait() is None


async def test_dollars_a_day_expect_the_next_call_to_cost_what_they_did():
    clock = Clock()
    budget = make(clock, dollars_per_day=1.0)
    await budget.take(1, clock.now)
    budget.spend(1, 10, 0.6)
    assert budget.wait() == ("dollars_per_day", DAY_S - 100)


async def test_waiting_is_said_once_and_shown(caplog):
    caplog.set_level(logging.INFO)
    clock = Clock()
    budget = make(clock, calls_per_minute=1)
    await budget.take(1, clock.now)
    for _ in range(3):
        with pytest.raises(OverBudget):
            await budget.take(1, clock.now)
    waiting = budget.metrics.waiting.labels("calls_per_minute")._value
    assert waiting.get() == 1
    clock.now += 61
    await budget.take(1, clock.now)
    assert waiting.get() == 0
    assert [r.message.split(";")[0] for r in caplog.records] == [
        "over budget: judge.calls_per_minute",
        "within budget again",
    ]


async def test_take_waits_for_its_turn():
    clock = Clock()
    budget = make(clock, calls_per_minute=1)
    await budget.take(1, clock.now)
    clock.now += 59.9
    task = asyncio.create_task(budget.take(1, clock.now + 10))
    await asyncio.sleep(0.02)
    assert not task.done()
    clock.now += 1
    await asyncio.wait_for(task, 30)


async def test_the_day_s_count_is_shared_and_outlives_a_restart(control):
    clock = Clock()
    async with AsyncClient(control.url) as client:
        first, second = (make(clock, client, tokens_per_day=1000, dollars_per_day=1.0) for _ in range(2))
        for budget in (first, second):
            await budget.take(0, clock.now)
            budget.spend(0, 400, 0.25)
        await first.sync()
        await second.sync()
        await first.sync()
        assert first.spent == second.spent
        assert (first.spent.tokens, first.spent.dollars, first.spent.calls) == (800, 0.5, 2)
        restarted = make(clock, client, tokens_per_day=1000)
        await restarted.sync()
        assert restarted.wait(300) == ("tokens_per_day", DAY_S - 100)
        clock.now += DAY_S
        await restarted.sync()
        assert restarted.spent.tokens == 0


async def test_a_store_that_is_away_loses_no_count():
    clock = Clock()
    async with AsyncClient("http://127.0.0.1:9") as client:
        budget = make(clock, client, tokens_per_day=100)
        await budget.take(0, clock.now)
        budget.spend(0, 60, None)
        await budget.sync()
        assert budget.spent.tokens == 60 and budget._unsaved.tokens == 60
