from __future__ import annotations

import time

import pytest
from tests.support.groups import episode, group, quality_group, run

from slipstream.contract import Score
from slipstream.settings import JudgeConfig
from slipstream_judge.compare.group import GroupJudge
from slipstream_judge.compare.rubric import Rubrics
from slipstream_judge.compare.ruler import Ruler
from slipstream_judge.model.budget import Budget
from slipstream_judge.model.cache import VoteCache
from slipstream_judge.model.llm import Llm
from slipstream_judge.model.metrics import JudgeMetrics
from slipstream_judge.trust.audit import Auditor, agreement, chosen


def scores(*values):
    return [Score(episode=f"e{n}", value=v) for n, v in enumerate(values)]


def test_a_share_of_the_groups_is_chosen_and_always_the_same():
    names = [f"g{n}" for n in range(2000)]
    picked = [n for n in names if chosen(n, 0.2)]
    assert 300 < len(picked) < 500
    assert picked == [n for n in names if chosen(n, 0.2)]
    assert all(chosen(n, 1.0) for n in names) and not any(chosen(n, 0.0) for n in names)


def test_agreement():
    assert agreement(scores(0.1, 0.5, 0.9), scores(0.2, 0.3, 0.4)) == pytest.approx(1)
    assert agreement(scores(0.1, 0.5, 0.9), scores(0.9, 0.5, 0.1)) == pytest.approx(-1)
    assert agreement(scores(0.5, 0.5), scores(0.1, 0.1)) == 1.0
    assert agreement(scores(0.5, 0.5), scores(0.1, 0.9)) == 0.0
    assert agreement(scores(0.5), scores(0.5)) is None


def second(ruled, metrics):
    judge = JudgeConfig(model="openai/first", audit_model="openai/second", audit_share=1.0, api_base=ruled.url)
    ruler = Ruler(judge, Llm(judge, Budget(judge, metrics), metrics, "openai/second"), metrics)
    return judge, GroupJudge(judge, ruler, Rubrics(judge), VoteCache(None, metrics), metrics)


async def test_drift_shows_in_the_metric(ruled):
    metrics = JudgeMetrics()
    judge, other = second(ruled, metrics)
    auditor = Auditor(judge, other, metrics)
    work = quality_group("g", [0.1, 0.5, 0.9])
    first = [Score(episode=e.episode.id, value=v) for e, v in zip(work.episodes, (0.2, 0.4, 0.8), strict=True)]
    assert await auditor.audit(work, first, time.time() + 60) == pytest.approx(1)
    drifted = [s.model_copy(update={"value": 1 - s.value}) for s in first]
    assert await auditor.audit(work, drifted, time.time() + 60) == pytest.approx(-1)
    assert metrics.agreement._value.get() == pytest.approx(0)


async def test_an_audit_that_fails_is_counted_and_harms_nothing(ruled):
    metrics = JudgeMetrics()
    judge, other = second(ruled, metrics)
    ruled.always = {"status": 400}
    assert await Auditor(judge, other, metrics).audit(quality_group("g", [0.1, 0.9]), [], time.time() + 60) is None
    assert metrics.audits.labels("failed")._value.get() == 1
    assert await Auditor(judge, None, metrics).audit(quality_group("g", [0.1, 0.9]), [], time.time() + 60) is None


def test_the_agent_s_reward_is_compared_within_groups():
    metrics = JudgeMetrics()
    auditor = Auditor(JudgeConfig(), None, metrics)
    # Between the groups the two disagree, within each they agree.
    for base, name in ((0.0, "a"), (0.5, "b")):
        work = group(name, [episode(f"{name}{n}", run(0.1), reward=1 - base + n / 10) for n in range(3)])
        auditor.compare(work, [Score(episode=f"{name}{n}", value=base + n / 10) for n in range(3)])
    assert metrics.agent_correlation._value.get() == pytest.approx(1)
    assert metrics.agent_pairs._value.get() == 6
    auditor.compare(group("c", [episode("c0", run(0.1))]), [Score(episode="c0", value=0.5)])
    assert metrics.agent_pairs._value.get() == 6
