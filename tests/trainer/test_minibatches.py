"""A batch is cut into optimiser steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tiny import adapter_state, conversation, make_config, make_trainer

from slipstream.contract import ChoiceGaps
from slipstream_trainer.algorithm.advantage import assign
from slipstream_trainer.algorithm.guards import after_step
from slipstream_trainer.algorithm.learning_rate import StepPace
from slipstream_trainer.batch.minibatches import minibatches
from slipstream_trainer.batch.rows import Sample
from slipstream_trainer.step.gaps import MAX_REPORTED_TOKENS
from slipstream_trainer.step.result import Result, merged
from slipstream_trainer.step.step import train

IDS, LOGPROBS = np.arange(3, dtype=np.int32), np.zeros(3, np.float32)


def sample(group: int, run: int, advantage: float, *, hint: str | None = None) -> Sample:
    found = Sample(f"g{group}", "task", f"e{group}-{run}", "c", 0, 0, IDS, IDS, LOGPROBS, 0.0, hint=hint)
    found.advantage = advantage
    return found


def teaches(part: list[Sample]) -> int:
    return len({s.group for s in part if s.trainable and s.advantage})


@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from([0.0, 1.0]), st.booleans()), max_size=120), st.integers(1, 6)
)
def test_groups_stay_whole_and_each_part_teaches_enough(drawn, groups: int) -> None:
    samples = [sample(group, run, advantage) for run, (group, advantage, _) in enumerate(drawn)]
    for s, (*_, trainable) in zip(samples, drawn, strict=True):
        s.trainable = trainable
    parts = minibatches(samples, groups)
    assert sorted(s.episode for part in parts for s in part) == sorted(s.episode for s in samples)
    homes = [{s.group for s in part} for part in parts]
    assert sum(map(len, homes)) == len({s.group for s in samples})
    if len(parts) > 1:
        assert all(groups <= teaches(part) < 2 * groups for part in parts)
    else:
        assert teaches(samples) < 2 * groups


def test_what_users_said_is_judged_over_the_whole_batch() -> None:
    samples = [sample(group, run, 1.0) for group in range(8) for run in range(2)]
    assert len(minibatches(samples, 2)) == 4
    samples.append(sample(9, 0, 0.0, hint="shorter"))
    assert minibatches(samples, 2) == [samples]


def test_a_batch_of_eight_groups_is_two_steps_of_four(tiny, tmp_path) -> None:
    """The same weights as if each half had come by itself; what is told counts both."""
    trainers = [make_trainer(make_config(tiny, tmp_path / str(i), warmup_steps=0), warm=False) for i in range(2)]
    whole, apart = conversation(0, groups=8), conversation(0, groups=8)
    assign(apart, trainers[1].config.trainer.advantage)
    halves = minibatches(apart, 4)
    assert len(halves) == 2
    torch.manual_seed(0)
    result = train(trainers[0], whole, StepPace(), 0)
    torch.manual_seed(0)
    pace = StepPace()
    for half in halves:
        parts = train(trainers[1], half, pace, 0)
        assert parts.outcome == "step"
    assert result.figures["optimizer_steps"] == 2
    assert result.figures["groups"] == 8
    assert result.figures["tokens"] == sum(len(s.completion_C) for s in whole)
    for one, other in zip(*(adapter_state(t.model).values() for t in trainers), strict=True):
        torch.testing.assert_close(one, other)
    for part in ("layout", "reference", "gradient", "optimize", "check"):
        assert 0 <= result.figures[f"{part}_seconds"] <= result.figures["seconds"]


def test_a_minibatch_that_goes_too_far_is_undone_alone(tiny, tmp_path, monkeypatch) -> None:
    trainer = make_trainer(make_config(tiny, tmp_path, warmup_steps=0), warm=False)
    kept = []

    def second_is_too_far(t, *, kl: float, entropy: float, grad_norm: float | None) -> str | None:
        kept.append(adapter_state(trainer.model))
        return after_step(t, kl=kl, entropy=entropy, grad_norm=grad_norm) or ("too far" if len(kept) == 2 else None)

    monkeypatch.setattr("slipstream_trainer.step.step.after_step", second_is_too_far)
    result = train(trainer, conversation(0, groups=8), StepPace(), 0)
    assert (result.outcome, result.reason) == ("step", "1 of 2 minibatches undone: too far")
    for name, weight in adapter_state(trainer.model).items():
        torch.testing.assert_close(weight, kept[0][name])


def test_tokens_told_of_a_batch_are_bounded_over_its_minibatches() -> None:
    """The newest stay."""
    size = MAX_REPORTED_TOKENS // 2 + 1
    parts = [
        Result("step", gaps=[ChoiceGaps(key="", episode=f"e{i}", call="c", choice=0, gaps=[0.0] * size)])
        for i in range(3)
    ]
    assert [gap.episode for gap in merged(parts).gaps] == ["e2"]


@pytest.mark.parametrize(
    ("outcomes", "outcome", "reason"),
    [
        (["skipped", "step", "undone"], "step", "2 of 3 minibatches skipped: why 0"),
        (["skipped", "undone"], "undone", "why 0"),
        (["skipped", "skipped"], "skipped", "why 0"),
        (["step", "step"], "step", None),
    ],
)
def test_what_becomes_of_a_batch(outcomes: list[str], outcome: str, reason: str | None) -> None:
    parts = [
        Result(o, None if o == "step" else f"why {i}", {"tokens": i + 1, "loss": float(i), "learning_rate": i / 2})
        for i, o in enumerate(outcomes)
    ]
    found = merged(parts)
    assert (found.outcome, found.reason) == (outcome, reason)
    counts = range(1, len(outcomes) + 1)
    assert found.figures["tokens"] == sum(counts)
    assert found.figures["loss"] == pytest.approx(sum(n * (n - 1) for n in counts) / sum(counts))
    assert found.figures["learning_rate"] == (len(outcomes) - 1) / 2
    assert found.figures["optimizer_steps"] == outcomes.count("step")
