"""Grades of calls beside rewards of runs, kinds of traffic and a discount: against one flat formula."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tests.support.oracle import FlatTraffic, flat_advantages
from tests.support.tiny import conversation, make_config, make_trainer, sample

from slipstream_trainer.algorithm.advantage import LARGE_ADVANTAGE, SMALL_ADVANTAGE, assign
from slipstream_trainer.algorithm.learning_rate import StepPace
from slipstream_trainer.algorithm.traffic import Traffic
from slipstream_trainer.batch.rows import Sample
from slipstream_trainer.step.step import train


def made(chance: random.Random, batch: int, kind: str, graded: float) -> list[Sample]:
    """Runs of two keys and three tags, of which the rewards differ by much more than the runs of one do."""
    found = []
    for n in range(8):
        key, tags = chance.choice("ab"), chance.choice("xyz")
        level = {"a": 0.0, "b": 3.0}[key] + {"x": 0.0, "y": 1.0, "z": -2.0}[tags]
        reward = level + chance.gauss(0, 0.3)
        for turn in range(chance.randint(1, 4)):
            grade = 0.2 * level + chance.gauss(0, 0.1) if chance.random() < graded else None
            found.append(
                sample(
                    f"{batch}-{n}", [3], [4], kind=kind, group="g", call=f"{batch}-{n}-{turn}", number=turn, key=key, tags=tags, reward=reward,
                    call_reward=chance.choice([grade, 0.0]) if grade is not None else None,
                )
            )  # fmt: skip
    return found


@pytest.mark.parametrize("graded", [0.0, 0.04, 0.5, 1.0])
@pytest.mark.parametrize("discount", [None, 0.0, 0.9, 1.0])
@pytest.mark.parametrize("kind", ["mean", "std", "leave_one_out"])
@pytest.mark.parametrize("kinds", ["task", "like", "like, remembered"])
def test_every_advantage_is_the_flat_formulas(graded: float, discount: float | None, kind: str, kinds: str) -> None:
    chance = random.Random(f"{graded} {discount} {kind} {kinds}")
    traffic = Traffic() if kinds.endswith("remembered") else None
    memory = (FlatTraffic(), FlatTraffic()) if traffic is not None else None
    for batch in range(6):
        samples = made(chance, batch, kinds.partition(",")[0], graded)
        calls = [(s.run, s.number, s.reward, s.call_reward, s.key, s.tags) for s in samples]
        assign(samples, kind, discount, traffic)
        expected = flat_advantages(calls, kind, discount, memory)
        assert expected is not None
        assert [s.advantage for s in samples] == pytest.approx(expected, rel=1e-9, abs=1e-9)


def run(name: str, reward: float, *grades: float | None, **more: Any) -> list[Sample]:
    return [
        sample(name, [3], [4], call=f"{name}{n}", number=n, reward=reward, call_reward=grade, **more)
        for n, grade in enumerate(grades)
    ]


@pytest.mark.parametrize("kind", ["std", "mean"])
def test_a_good_runs_only_grade_is_no_blame(kind: str) -> None:
    """A grade of 0.2 is not compared with rewards of 1."""
    good = [s for n in range(3) for s in run(f"g{n}", 1.0, None, None)]
    samples = [*good, *run("a", 1.0, 0.2, None), *run("b", 0.0, None)]
    assign(samples, kind)
    graded = next(s for s in samples if s.call_reward is not None)
    assert graded.advantage == good[0].advantage > 0


def test_grades_compare_with_grades() -> None:
    samples = [*run("a", 1.0, 0.2, None), *run("b", 0.0, 0.6, None), *run("c", 0.5, 0.1)]
    assert assign(samples, "mean").baselines == {"call": 3}
    assert [s.advantage for s in samples] == pytest.approx([-0.1, 0.5, 0.3, -0.5, -0.2])
    same = [*run("a", 1.0, 0.3, 0.3), *run("b", 0.0, None)]
    assign(same, "mean")
    assert [s.advantage for s in same] == [0.5, 0.5, -0.5], "equal grades say nothing"


@pytest.mark.parametrize(("grade", "discount"), [(0.9, None), (None, 0.9), (0.2, 0.5)])
def test_one_graded_call_or_a_discount_leaves_the_kinds_evened_out(grade, discount) -> None:
    """Of the easy customer's runs and the hard one's the same share is good, and no advantage has the wrong sign."""
    traffic, wrong = Traffic(), 0
    for n in range(20):
        samples = [
            s
            for i in range(16)
            for s in run(f"{n}-{i}", (0.7 if i < 8 else 0.1) + 0.2 * (i % 2), None, kind="like", tags="hard" if i >= 8 else "easy")
        ]  # fmt: skip
        samples[3].call_reward = grade
        assign(samples, "mean", discount, traffic)
        if n >= 5:
            wrong += sum((s.advantage > 0) != bool(i % 2) for i, s in enumerate(samples) if i != 3)
    assert wrong == 0


def test_memory_of_grades_outlives_a_checkpoint() -> None:
    from dataclasses import asdict

    traffic = Traffic()
    assign([*run("a", 1.0, 0.2, kind="like"), *run("b", 0.0, 0.9, kind="like")], "mean", traffic=traffic)
    assert traffic.grades is not None and Traffic(**asdict(traffic)) == traffic


@pytest.mark.parametrize("kind", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", [1e6, 1.0, 1e-6])
def test_rewards_of_an_odd_scale_are_said_to_be_why(tiny, tmp_path, kind: str, scale: float) -> None:
    trainer = make_trainer(make_config(tiny, tmp_path, advantage=kind, max_kl=1e3))
    samples = conversation(0)
    for s in samples:
        s.reward *= scale
    found = train(trainer, samples, StepPace(), 0)
    said = str(found.reason or "") + str(found.figures.get("cause", ""))
    assert ("the rewards' scale is why" in said and 'trainer.advantage = "std"' in said) == (scale != 1)
    assert found.outcome == ("skipped" if scale > 1 else "step")


@pytest.mark.parametrize(("scale", "said"), [(1e6, False), (1.0, False), (1e-4, False), (1e-6, True), (1e-9, True)])
def test_rewards_below_the_constant_of_std_are_said_to_be_why(tiny, tmp_path, scale: float, said: bool) -> None:
    trainer = make_trainer(make_config(tiny, tmp_path, advantage="std", max_kl=1e3))
    samples = conversation(0)
    for s in samples:
        s.reward *= scale
    found = train(trainer, samples, StepPace(), 0)
    why = f"{found.reason or ''}{found.figures.get('cause', '')}"
    assert ("scale the rewards to about 0 to 1" in why) == said
    assert found.outcome == ("skipped" if scale == 1e-9 else "step")


def test_usual_advantages_are_of_no_odd_scale() -> None:
    rewards = np.array([0.0] * 63 + [1.0])
    samples = [sample(f"e{i}", [3], [4], reward=r) for i, r in enumerate(rewards)]
    assign(samples, "std")
    assert SMALL_ADVANTAGE < max(abs(s.advantage) for s in samples) < LARGE_ADVANTAGE
