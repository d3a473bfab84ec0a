"""Where not all runs have a reward, having none says nothing: of the bets, of guards, and of whole trials."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest
from benchmarks.gate.hard_worlds import FOUND_WORLDS, NULL_WORLDS, HardSimulation, equal
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.trial import warm

from slipstream_proxy.control.gate.detector import BET_SIZES, RATING_RATIOS, BettingDetector
from slipstream_proxy.control.gate.line import Deadline
from slipstream_proxy.control.gate.report import report_of
from slipstream_proxy.control.gate.rules import Decision, TrialSettings, outcome_of
from slipstream_proxy.control.gate.trial import GateTrial

UNIT, SHARE = st.floats(0, 1), st.floats(0.05, 0.95)
NAMES = {0: "tiny", 1: "tiny@1"}


def rows(detector: BettingDetector) -> list[list[float]]:
    return [detector.wealths, *detector.others]


def seen(x: float, expected: float, tested: bool, share: float, sign: int = 1, margin: float = 0.0) -> BettingDetector:
    detector = BettingDetector(sign, 1.0, 0.0, shifts=False, margin=margin)
    detector.see(x, expected, tested, share, partial=True)
    return detector


def before() -> list[float]:
    """Each bet's wealth before the first run."""
    return [0.9 * w for w in BettingDetector(1, 1.0, 0.0, shifts=False).wealths]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(expected=st.floats(0.02, 0.98), share=SHARE, tested=st.booleans(), sign=st.sampled_from([1, -1]))
def test_a_reward_as_expected_changes_no_bet_whichever_arm_was_rated(expected, share, tested, sign):
    """So a run without a reward, which changes none either, says nothing of the reward."""
    for row in rows(seen(expected, expected, tested, share, sign)):
        assert row == pytest.approx(before(), rel=1e-9)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(x=UNIT, expected=UNIT, share=SHARE, sign=st.sampled_from([1, -1]), k=st.integers(0, len(RATING_RATIOS) - 1))
def test_at_the_true_ratio_the_mean_over_the_rated_runs_arm_is_one(x, expected, share, sign, k):
    """Whatever the baseline is, and whichever reward came."""
    ratio = RATING_RATIOS[k]
    rated = share * ratio / (share * ratio + 1.0 - share)
    tested, reference = (rows(seen(x, expected, arm, share, sign))[k] for arm in (True, False))
    for i in range(len(BET_SIZES)):
        assert math.isclose(rated * tested[i] + (1 - rated) * reference[i], before()[i], rel_tol=1e-9)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(a=UNIT, b=UNIT, expected=UNIT, share=SHARE, margin=st.sampled_from([0.0, 0.1]))
def test_at_the_true_ratio_a_tested_arm_that_is_not_worse_makes_no_money_in_the_mean(a, b, expected, share, margin):
    high, low = max(a, b), min(a, b)
    lost = min(margin, high)
    tested, reference = (
        seen(high - lost, expected, True, share, margin=margin),
        seen(low, expected, False, share, margin=margin),
    )
    if high - lost < low - margin:
        return
    for i in range(len(BET_SIZES)):
        assert share * tested.wealths[i] + (1 - share) * reference.wealths[i] <= before()[i] * (1 + 1e-9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(UNIT, UNIT, st.booleans(), SHARE, st.booleans()), max_size=40),
    st.lists(st.integers(0, 39), max_size=6),
)
def test_forgetting_puts_no_wealth_in(runs, forgets):
    """However often the rewards' scale changes: only what was earned comes in."""
    detector, put = BettingDetector(1, 0.3, 0.001), 0.3
    for i, (x, expected, tested, share, partial) in enumerate(runs):
        detector.see(x, expected, tested, share, partial)
        put += 0.001
        if i in forgets:
            was, earned = detector.wealth, detector.credit
            detector.forget()
            assert detector.wealth <= min(was, detector.put - earned) + earned + 1e-12
            assert detector.put <= put + 1e-12


def test_it_is_kept_over_a_restart_with_and_without_unrated_runs():
    detector, coin = BettingDetector(1, 0.3, 0.001), random.Random(0)
    short = json.loads(json.dumps(detector.dump()))
    for i in range(60):
        detector.see(float(coin.random() < 0.5), 0.6, coin.random() < 0.5, 0.5, partial=i > 20)
    again = BettingDetector(1, 0.3, 0.001)
    again.load(json.loads(json.dumps(detector.dump())))
    assert again.dump() == detector.dump() and again.wealth == pytest.approx(detector.wealth)
    detector.lower_to(short)
    assert detector.wealth <= again.wealth + 1e-12 and len(detector.dump()) == len(again.dump())


@pytest.mark.parametrize(("rated", "ratio", "mean"), [(0.4, 0.5, 0.95), (0.4, 0.25, 0.95), (0.2, 0.5, 0.95)])
def test_users_who_rate_less_often_take_nothing_back(rated, ratio, mean):
    world = equal(mean, rated=rated, ratio=ratio, episodes=2500)
    simulations = [HardSimulation(world, seed) for seed in range(6)]
    assert [s.play().rollbacks for s in simulations] == [0] * 6
    assert max(s.most for s in simulations) < -1.0


def test_each_version_may_be_rated_at_a_rate_of_its_own_while_everybody_drifts():
    world = NULL_WORLDS["rated 20 %, each version at a rate of its own, waves"]
    simulations = [HardSimulation(world, seed) for seed in range(4)]
    assert [s.play().rollbacks for s in simulations] == [0] * 4
    assert max(s.most for s in simulations) < -1.0


def test_where_a_tenth_of_the_controls_runs_is_unrated_chance_does_not_make_that_nearly_none():
    world = NULL_WORLDS["rated 88 %, × 0.25"]
    assert [HardSimulation(world, seed).play().rollbacks for seed in range(3)] == [0] * 3


@pytest.mark.parametrize(("lost", "most"), [(0.12, 0.02), (0.1, 0.03)])
def test_that_nearly_all_runs_get_a_reward_has_to_be_shown(lost, most):
    """A tenth or more get none: at the end of 300 runs it is seldom thought that nearly all get one."""
    wrong = 0
    for seed in range(400):
        deadline, coin = Deadline(), random.Random(seed)
        for _ in range(300):
            deadline.see(None if coin.random() < lost else 1.0, 0, tested=False)
        wrong += not deadline.sparse
    assert wrong <= most * 400


def test_few_lost_rewards_do_not_hide_versions_that_hang():
    """Two of a hundred get none: that nearly all get one is known after 200 runs, also after an outage and a restart."""
    known = again = 0
    for seed in range(100):
        deadline, coin = Deadline(), random.Random(seed)
        for _ in range(200):
            deadline.see(None if coin.random() < 0.02 else 1.0, 0, tested=False)
        known += not deadline.sparse
        for _ in range(40):
            deadline.see(None, 0, tested=False)
        assert deadline.sparse
        later = Deadline()
        later.load(json.loads(json.dumps(deadline.dump())))
        assert later.sparse
        for _ in range(300):
            later.see(None if coin.random() < 0.02 else 1.0, 0, tested=False)
        again += not later.sparse
    assert known >= 95 and again >= 95


def test_who_rates_less_often_is_shown_by_arm_and_a_person_is_asked():
    simulation = HardSimulation(equal(0.9, rated=0.5, ratio=0.3, episodes=900, every=10_000), 1)
    simulation.play()
    report = report_of(simulation.trial, NAMES)
    assert report.decision == "undecided" and report.ratings is not None
    assert report.ratings.trial < 0.25 < 0.4 < report.ratings.control
    assert report.ratings.evidence >= report.threshold
    assert (
        f"rated {report.ratings.trial:.0%} of {report.ratings.trial_episodes:,} runs on trial, tiny " in report.reason
    )
    assert report.fix is not None and 'reward.missing = "failure"' in report.fix
    again = GateTrial(simulation.trial.settings)
    again.load(json.loads(json.dumps(simulation.trial.dump())))
    assert report_of(again, NAMES) == report


def test_a_version_that_loses_is_taken_back_where_few_rate():
    world = replace(equal(0.9, rated=0.2, episodes=6000, every=100_000), qualities=(0.1,))
    assert all(HardSimulation(world, seed).play().rollbacks for seed in range(4))


@pytest.mark.parametrize("declared", [True, False])
def test_failures_that_get_no_reward_count_where_people_say_so(declared):
    """The version fails twice as often, and each failure goes unrated."""
    trial, coin = warm(TrialSettings(shifts=False, missing_fails=declared), n=0), random.Random(2)
    decision = Decision.UNDECIDED
    for i in range(2000):
        if i == 200:
            trial.serve(1)
        control = i < 200 or coin.random() < 0.3
        won = coin.random() < (0.6 if control else 0.2)
        chances = "" if i < 200 else "live=0.7 control=0.3"
        arm = "control" if control and i >= 200 else "live"
        run = outcome_of(0 if control else 1, arm, chances, "", float(won), 1 if i >= 200 else None)
        run.finished, run.seconds = won, 1.0 if won else None
        if (decision := trial.observe(run)) is not Decision.UNDECIDED:
            break
    assert (decision is Decision.ROLLBACK) == declared


def test_a_measure_that_fewer_runs_have_freezes_nothing():
    world = equal(0.6, polite=0.3, ratio=0.5, episodes=3000)
    assert [HardSimulation(world, seed).play().frozen for seed in range(4)] == [None] * 4


@pytest.mark.parametrize("name", FOUND_WORLDS)
def test_the_worst_null_worlds_that_a_search_found_take_nothing_back(name):
    """``benchmarks.gate.search_null`` found them, on this code or on an earlier one."""
    runs = [HardSimulation(FOUND_WORLDS[name], seed).play() for seed in range(2)]
    assert [(r.rollbacks, r.frozen) for r in runs] == [(0, None)] * 2
