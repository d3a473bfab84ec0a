from __future__ import annotations

from collections import deque

import pytest
from tests.support.groups import quality_group

from slipstream.contract import Score
from slipstream.settings import JudgeConfig
from slipstream_judge.compare.group import Judged
from slipstream_judge.model.budget import Budget
from slipstream_judge.model.llm import Usage
from slipstream_judge.model.metrics import JudgeMetrics
from slipstream_judge.run.reports import RATE_WINDOW_S, JudgeReporter

GROUP = quality_group("g", [0.1, 0.9])


class Clock:
    now = 1_000_000.0

    def __call__(self):
        return self.now


def judged(cost, spread=0.1):
    scores = [Score(episode=e.episode.id, value=0.5, meta={"spread": spread}) for e in GROUP.episodes]
    return Judged(scores, [], {}, "group", Usage(cost=cost))


def made(**more):
    clock, config = Clock(), JudgeConfig(model="openai/ruled", **more)
    return clock, JudgeReporter(config, "j1", ["judge"], Budget(config, JudgeMetrics(), clock=clock), clock)


def test_a_judge_without_work_says_so():
    found = made()[1].report(0, deque())
    assert (found.groups_per_minute, found.seconds_per_group, found.spread, found.waits_for) == (0.0, None, None, None)
    assert found.model == "openai/ruled"


def test_rate_cost_and_spread():
    clock, reporter = made(votes=2)
    for _ in range(30):
        clock.now += 2.0
        reporter.score(4.0, judged(0.01), kept=True)
    reporter.score(4.0, judged(0.01), kept=False)
    found = reporter.report(3, deque([0.5, 1.0]))
    assert found.groups_per_minute == pytest.approx(30) and found.seconds_per_group == 4.0 and found.working == 3
    assert found.cost_per_group == pytest.approx(0.01) and found.spread == pytest.approx(0.1)
    assert (found.scored, found.lost) == (30, 1)
    assert (found.audit.value, found.audit.pairs) == (0.75, 2)
    clock.now += RATE_WINDOW_S + 1
    assert reporter.report(0, deque()).groups_per_minute == 0.0


def test_an_unknown_price_is_no_price():
    _, reporter = made()
    reporter.score(1.0, judged(0.01), kept=True)
    reporter.score(1.0, judged(None), kept=True)
    assert reporter.report(0, deque()).cost_per_group is None


def test_failures_and_the_budget_that_is_waited_for():
    clock, reporter = made(tokens_per_day=100)
    reporter.fail("no answer", postponed=False)
    reporter.fail("over budget", postponed=True)
    reporter.budget.spend(0, 100, 0.5)
    found = reporter.report(0, deque())
    assert (found.failed, found.postponed, found.last_error) == (1, 1, "over budget")
    assert found.waits_for == "judge.tokens_per_day" and found.waits_until == 1_036_800.0 > clock.now
    assert (found.spent.tokens, found.spent.tokens_limit, found.spent.dollars) == (100, 100, 0.5)
    reporter.score(1.0, judged(0.01), kept=True)
    assert reporter.report(0, deque()).last_error is None, "it scores again"
