from __future__ import annotations

import numpy as np
import pytest
from tests.support.tiny import conversation, make_config, make_trainer

from slipstream_trainer.algorithm.learning_rate import StepPace
from slipstream_trainer.batch.layout import score
from slipstream_trainer.step.gaps import MAX_REPORTED_VALUE, MIN_GAP_TOKENS, engine_gap, gaps_of
from slipstream_trainer.step.step import train


def test_each_trained_token_is_told_with_its_own_call(tiny, tmp_path) -> None:
    """An engine that was off by another amount at each token: the trainer finds these amounts."""
    config = make_config(tiny, tmp_path)
    samples = conversation(0, groups=2)
    samples[3].trainable, samples[3].reason = False, "top_k"
    name = lambda x: (x.episode, x.call, x.choice)  # noqa: E731
    first = {name(g): g for g in train(make_trainer(config, warm=False), samples, StepPace(), 0).gaps}
    away, chance = {}, np.random.default_rng(0)
    for s in samples:
        away[name(s)] = chance.uniform(-0.3, 0.3, len(s.completion_C)).astype(np.float32)
        s.logprobs_C = s.logprobs_C - away[name(s)]
    result = train(make_trainer(config, warm=False), samples, StepPace(), 0)
    assert {name(g) for g in result.gaps} == {name(s) for s in samples if s is not samples[3]}
    for g in result.gaps:
        assert np.subtract(g.gaps, first[name(g)].gaps) == pytest.approx(away[name(g)], abs=2e-3)
    every = np.concatenate([g.gaps for g in result.gaps])
    assert np.abs(every).mean() == pytest.approx(result.figures["logprob_gap"], abs=1e-3)
    assert np.abs(every).max() == pytest.approx(result.figures["logprob_gap_max"], abs=1e-3)


def test_of_a_large_batch_the_last_runs_are_told_whole() -> None:
    samples = conversation(0, groups=2)
    scored, _ = score(samples)
    gap = np.arange(scored.tokens, dtype=np.float32) % 7
    gap[-1], gap[-2] = np.nan, -np.inf
    most = sum(len(s.completion_C) for s in samples[-2:]) + 1
    found = gaps_of(samples, scored, gap, most)
    assert [(g.episode, g.call, g.choice) for g in found] == [
        (s.episode, s.call, s.choice) for s in (samples[-1], samples[-2])
    ]
    assert [len(g.gaps) for g in found] == [len(s.completion_C) for s in (samples[-1], samples[-2])]
    assert found[0].gaps[-2:] == [-MAX_REPORTED_VALUE, MAX_REPORTED_VALUE]
    assert len(gaps_of(samples, scored, gap)) == len(samples)


def test_the_engines_own_gap_leaves_older_versions_out(tiny, tmp_path) -> None:
    """Runs of an older version differ because the policy moved; the engine is off by 0.25 beside that."""
    samples = conversation(0, groups=2)
    first = train(make_trainer(make_config(tiny, tmp_path), warm=False), samples, StepPace(), 0)
    for s, g in zip(samples, sorted_as(samples, first.gaps), strict=True):
        s.logprobs_C = s.logprobs_C + np.float32(g.gaps) - np.float32(0.25)
        if s.episode.endswith("1"):
            s.logprobs_C = s.logprobs_C - np.float32(2.0)
        s.own = not s.episode.endswith("1")
    figures = train(make_trainer(make_config(tiny, tmp_path), warm=False), samples, StepPace(), 0).figures
    assert {s.own for s in samples} == {True, False}
    assert figures["engine_gap"] == pytest.approx(0.25, abs=5e-3)
    assert figures["logprob_gap"] > 0.5


def sorted_as(samples, gaps):
    by = {(g.episode, g.call, g.choice): g for g in gaps}
    return [by[s.episode, s.call, s.choice] for s in samples]


def test_a_batch_of_old_runs_says_nothing_of_the_engine() -> None:
    samples = conversation(0, groups=2)
    scored, _ = score(samples)
    gap = np.zeros(scored.tokens, dtype=np.float32)
    for s in samples:
        s.own = True
    assert engine_gap(samples, scored, gap) == 0.0
    gap[0] = np.nan
    assert engine_gap(samples, scored, gap) == pytest.approx(MAX_REPORTED_VALUE / scored.tokens)
    left = MIN_GAP_TOKENS - 1
    for s in samples:
        s.own, left = (False, left) if len(s.completion_C) > left else (True, left - len(s.completion_C))
    assert engine_gap(samples, scored, gap) is None
