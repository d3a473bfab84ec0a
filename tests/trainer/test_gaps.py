from __future__ import annotations

import numpy as np
import pytest
from tests.support.tiny import conversation, make_config, make_trainer

from slipstream_trainer.gaps import FAR, gaps_of
from slipstream_trainer.learning_rate import StepPace
from slipstream_trainer.plan import score
from slipstream_trainer.step import train


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
    assert found[0].gaps[-2:] == [-FAR, FAR]
    assert len(gaps_of(samples, scored, gap)) == len(samples)
