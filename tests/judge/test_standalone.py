"""RULER from Python, without a proxy."""

from __future__ import annotations

import functools
import inspect

import pytest
from tests.support.groups import said
from tests.support.replayed import recorded

import slipstream_judge
from slipstream.errors import ConfigError
from slipstream.settings import JudgeConfig
from slipstream_judge import ruler_score, ruler_score_sync
from slipstream_judge.model.llm import JudgeFailed
from slipstream_proxy.control.gate.detector import BettingDetector
from slipstream_replay.by_judge import SideBySide
from slipstream_replay.comparison import Questions
from slipstream_replay.steps import case_of

RUNS = [[said("user", "What is the capital?"), said("assistant", f"QUALITY {q}")] for q in (0.2, 0.9, 0.5)]
MODEL = "openai/ruled"


async def test_runs_get_their_scores_in_their_order(ruled):
    found = await ruler_score(RUNS, model=MODEL, api_base=ruled.url, rubric="Be strict.", votes=2)
    assert [s.score for s in found] == [0.2, 0.9, 0.5]
    assert found[0].votes == [0.2, 0.2] and found[0].spread == 0.0 and found[0].reason == "ruled 0.200"
    assert len(ruled.requests) == 2 and all("Be strict." in read.outside for read in ruled.seen)


async def test_equal_runs_and_a_single_one(ruled):
    assert [s.score for s in await ruler_score([RUNS[0], RUNS[1], RUNS[0]], MODEL, api_base=ruled.url)] == [
        0.2,
        0.9,
        0.2,
    ]
    assert [s.score for s in await ruler_score(RUNS[:1], MODEL, api_base=ruled.url)] == [0.2]
    assert await ruler_score([], MODEL, api_base=ruled.url) == []


def test_without_an_event_loop(ruled):
    assert [s.score for s in ruler_score_sync(RUNS, MODEL, api_base=ruled.url)] == [0.2, 0.9, 0.5]


async def test_mistakes_are_named(ruled):
    with pytest.raises(ConfigError, match="votez"):
        await ruler_score(RUNS, MODEL, votez=3)
    with pytest.raises(ConfigError, match=r"runs\[1\]"):
        await ruler_score([RUNS[0], "text"], MODEL, api_base=ruled.url)  # type: ignore[list-item]
    for wrong in (None, 3, [object()]):
        with pytest.raises(ConfigError, match=r"runs\[0\]"):
            await ruler_score([wrong], MODEL, api_base=ruled.url)  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="function"):
        await ruler_score(RUNS, MODEL, function="os:getcwd")
    with pytest.raises(ConfigError, match="await ruler_score"):
        ruler_score_sync(RUNS, MODEL)
    ruled.always = "prose"
    with pytest.raises(JudgeFailed):
        await ruler_score(RUNS, MODEL, api_base=ruled.url)


def test_it_is_exported_and_documented():
    assert slipstream_judge.__all__ == ["RulerScore", "ruler_score", "ruler_score_sync"]
    assert "Raises:" in inspect.getdoc(ruler_score)


@pytest.mark.parametrize("samples", [1, 6])
async def test_a_replays_replies_are_judged_in_both_orders(ruled, samples):
    """This judge favours what it reads first: it finds no difference between sides that have none, and one where there is."""
    ruled.rule = lambda runs, _: {
        run: min(1.0, (0.5 if "GOOD" in text else 0.2) + 0.4 * (1 - place / max(len(runs) - 1, 1)))
        for place, (run, text) in enumerate(runs.items())
    }
    judge = SideBySide(JudgeConfig(model=MODEL, api_base=ruled.url))
    for candidate, low, high in (("GOOD too", -0.5 * (samples > 1), 0.5 * (samples > 1)), ("BAD", -1.0, -1.0)):
        case = case_of(recorded("e1"))
        step = case.steps[0]
        for replies, text in ((step.candidate, candidate), (step.control, "GOOD")):
            replies += [{"message": said("assistant", f"{text} {n}"), "finish_reason": "stop"} for n in range(samples)]
        await judge.case(case)
        pair = Questions(functools.partial(BettingDetector, lump=1.0, rate=0.0, shifts=False), 0.01, "judge").see(case)[
            "judge"
        ]
        assert low <= pair.difference <= high
    assert len(ruled.requests) == (4 if samples == 1 else 8)  # each part of a step twice
