"""The learning rate by itself: where it begins, how it follows the KL of steps, what it says when nothing moves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tiny import conversation, make_config, make_model, make_trainer

from slipstream.settings import TrainerConfig
from slipstream_trainer.algorithm.learning_rate import (
    FAR_RISE,
    FULL_STEP_EPISODES,
    MAX_FALL,
    MAX_RATE_FACTOR,
    MAX_RISE,
    MIN_RATE_FACTOR,
    STILL_AFTER,
    TOO_SHORT,
    Reach,
    StepPace,
    evidence,
    start_rate,
)
from slipstream_trainer.batch.layout import Scored
from slipstream_trainer.step.step import train

AUTO = TrainerConfig()


def scored(episodes: int, tokens_each: int = 10, silent: int = 0) -> Scored:
    """``episodes`` with an advantage, and ``silent`` ones without."""
    unit = np.repeat(np.arange(episodes + silent), tokens_each)
    ones = np.ones(len(unit), dtype=np.float32)
    advantage = np.where(unit < episodes, 0.5, 0.0).astype(np.float32)
    return Scored(unit, unit, ones, ones, advantage, unit, unit, episodes + silent)


FULL = scored(FULL_STEP_EPISODES)


def test_where_it_begins() -> None:
    assert start_rate(AUTO, 2000) == pytest.approx(2.5e-4)
    assert start_rate(AUTO, 256) == pytest.approx(1.23e-3, rel=0.01)
    assert start_rate(AUTO, 4096) == pytest.approx(1.43e-4, rel=0.01)
    assert start_rate(TrainerConfig(algorithm="sft"), 2000) == pytest.approx(5e-4)
    assert start_rate(TrainerConfig(lora_alpha=64), 2000) == pytest.approx(1.25e-4)
    assert start_rate(TrainerConfig(lora_rank=8, lora_alpha=32), 2000) == start_rate(AUTO, 2000), "not by the rank"
    assert start_rate(TrainerConfig(rslora=True), 2000) == pytest.approx(2.5e-4 / math.sqrt(16))
    assert start_rate(TrainerConfig(learning_rate=1e-5), 2000) == 1e-5


def test_few_episodes_make_a_small_step() -> None:
    assert [evidence(scored(n)) for n in (0, 16, 64, 128, 1000)] == [0.0, 0.25, 1.0, 2.0, 2.0]
    assert evidence(scored(16, silent=100)) == 0.25, "episodes without an advantage are no evidence"
    full, quarter = StepPace().reach(AUTO, 2000, FULL, 0), StepPace().reach(AUTO, 2000, scored(16), 0)
    assert quarter.rate == pytest.approx(full.rate / 2)
    assert quarter.target_kl == pytest.approx(full.target_kl / 4)
    twice = StepPace().reach(AUTO, 2000, scored(2 * FULL_STEP_EPISODES), 0)
    assert twice.rate == pytest.approx(full.rate * math.sqrt(2))
    assert twice.target_kl == pytest.approx(full.target_kl * 2)
    by_hand = TrainerConfig(learning_rate=1e-4)
    assert StepPace().reach(by_hand, 2000, scored(1), 0).rate == 1e-4


def test_a_step_moves_a_long_episode_by_one_nat() -> None:
    assert StepPace().reach(AUTO, 2000, scored(FULL_STEP_EPISODES, 10), 0).target_kl == AUTO.target_kl
    for episodes in (FULL_STEP_EPISODES, 2 * FULL_STEP_EPISODES):
        assert StepPace().reach(AUTO, 2000, scored(episodes, 2000), 0).target_kl == pytest.approx(1 / 2000)


def test_warm_up() -> None:
    t = TrainerConfig(learning_rate=1.0, warmup_steps=4)
    assert [StepPace().reach(t, 2000, FULL, n).rate for n in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


@given(st.lists(st.tuples(st.floats(0, 1e9) | st.just(math.nan) | st.just(math.inf), st.booleans()), max_size=60))
def test_it_never_leaves_its_bounds(steps: list[tuple[float, bool]]) -> None:
    pace = StepPace()
    for kl, undone in steps:
        before = pace.scale
        pace.note(AUTO, pace.reach(AUTO, 512, FULL, 0), kl, undone=undone)
        assert MIN_RATE_FACTOR <= pace.scale <= MAX_RATE_FACTOR
        assert MAX_FALL / 2 - 1e-9 <= pace.scale / before <= FAR_RISE + 1e-9
        assert pace.scale / before <= MAX_RISE + 1e-9 or 16 * kl < AUTO.target_kl
        assert not undone or pace.scale < before or before == MIN_RATE_FACTOR


@pytest.mark.parametrize("wrong", [1 / 16, 1 / 4, 1.0, 4.0, 40.0])
def test_steps_come_to_their_target_however_wrong_the_start_is(wrong: float) -> None:
    """A policy whose KL is (wrong · rate)² times the target, measured with noise of a factor of 2: simulated 200 times."""
    random = np.random.default_rng(0)
    late = []
    for _ in range(200):
        pace = StepPace()
        for n in range(40):
            reach = pace.reach(AUTO, 2000, FULL, n)
            true = reach.target_kl * (wrong * reach.rate / 2.5e-4) ** 2
            measured = true * random.lognormal(0, math.log(2))
            pace.note(AUTO, reach, measured, undone=measured > AUTO.max_kl)
            if n >= 20:
                late.append(true / reach.target_kl)
    low, middle, high = np.quantile(late, [0.05, 0.5, 0.95])
    bound = min(1.0, (wrong * MAX_RATE_FACTOR) ** 2)  # it may not rise further
    assert 0.5 * bound < middle < 2.0
    assert low > 0.2 * bound
    assert high < 4.0


@pytest.mark.parametrize(("times", "factor"), [(1 / 30, 2.0), (1 / 15, MAX_RISE), (1.0, 1.0), (3.0, 3**-0.25)])
def test_a_rate_that_is_far_too_low_doubles(times: float, factor: float) -> None:
    pace = StepPace()
    reach = pace.reach(AUTO, 1536, FULL, 0)
    pace.note(AUTO, reach, times * reach.target_kl, undone=False)
    assert pace.scale == pytest.approx(factor)


def test_a_rate_set_by_hand_halves_after_two_undone_in_a_row() -> None:
    t, pace = TrainerConfig(learning_rate=1.0), StepPace()

    def note(*, undone: bool) -> float:
        pace.note(t, pace.reach(t, 2000, FULL, 0), 0.01, undone=undone)
        return pace.scale

    assert [note(undone=u) for u in (True, False, True, True, True)] == [1.0, 1.0, 1.0, 0.5, 0.5]


def test_a_policy_that_does_not_move_is_reported_with_its_cause() -> None:
    t, pace = TrainerConfig(learning_rate=2e-5), StepPace()
    said = []
    for n in range(STILL_AFTER):
        reach = pace.reach(t, 256, FULL, n)
        pace.note(t, reach, 6e-7, undone=False)
        said.append(pace.cause(t, 256, reach, 6e-7))
    assert said[:-1] == [None] * (STILL_AFTER - 1)
    assert "trainer.learning_rate = 2e-05 is low" in said[-1]
    assert "1.2e-03" in said[-1]
    pace = StepPace(scale=MAX_RATE_FACTOR, still=STILL_AFTER)
    assert "upper bound" in pace.cause(AUTO, 256, pace.reach(AUTO, 256, FULL, 0), 1e-6)
    pace = StepPace(scale=MIN_RATE_FACTOR)
    assert "lower bound" in pace.cause(AUTO, 256, pace.reach(AUTO, 256, FULL, 0), 0.02)
    pace.note(AUTO, pace.reach(AUTO, 256, FULL, 0), 0.002, undone=False)
    assert pace.cause(AUTO, 256, pace.reach(AUTO, 256, FULL, 0), 0.005) is None


@pytest.mark.parametrize(("hidden", "rank", "alpha"), [(32, 8, 32.0), (32, 1, 8.0), (256, 16, 16.0), (256, 8, 64.0)])
def test_real_models_of_any_width_rank_and_alpha_move_by_the_target(
    tmp_path, hidden: int, rank: int, alpha: float
) -> None:
    model = make_model(tmp_path / "model", hidden_size=hidden, intermediate_size=2 * hidden)
    config = make_config(model, tmp_path, learning_rate="auto", lora_rank=rank, lora_alpha=alpha, max_kl=0.1)
    trainer, pace, ratios = make_trainer(config, warm=False), StepPace(), []
    for n in range(14):
        figures = train(trainer, conversation(n, groups=4), pace, n).figures
        ratios.append(figures["kl"] / figures["kl_target"])
        assert figures["learning_rate"] > 0
    assert 1 / 4 < float(np.median(ratios[-6:])) < 4, ratios


@pytest.mark.parametrize(("kl", "share"), [(0.002, 1.0), (0.0059, 1.0), (0.012, 0.5), (1e9, 0.05), (math.inf, 0.05)])
def test_only_a_step_of_more_than_twice_its_target_is_cut(kl: float, share: float) -> None:
    assert StepPace().resize(TrainerConfig(), Reach(1e-3, 0.003), kl) == pytest.approx(share)
    assert StepPace().resize(TrainerConfig(learning_rate=1e-4), Reach(1e-3, 0.003), kl) == 1.0


@pytest.mark.parametrize("power", [2.0, 3.0, 4.0, 6.0])
@pytest.mark.parametrize("times", [2.5, 10.0, 60.0])
def test_a_shortened_step_ends_near_its_target_however_fast_kl_grows(power: float, times: float) -> None:
    reach = Reach(1e-3, 0.003)
    full = times * reach.target_kl
    share, kl = 1.0, full
    for _ in range(3):
        share *= StepPace().resize(TrainerConfig(), reach, kl, share, full)
        kl = full * share**power
    assert TOO_SHORT * reach.target_kl <= kl <= 1.01 * reach.target_kl
    assert share < 1


def test_a_step_never_becomes_longer_than_it_was() -> None:
    assert StepPace().resize(TrainerConfig(), Reach(1e-3, 0.003), 1e-9, share=0.5, full=0.0061) <= 2.0
    assert StepPace().resize(TrainerConfig(), Reach(1e-3, 0.003), 1e-9) == 1.0
