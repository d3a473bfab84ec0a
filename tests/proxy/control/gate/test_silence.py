"""Where not all runs have a reward, having none says nothing: of the bets, of guards, and of whole trials."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import replace
from functools import partial

import pytest
from benchmarks.gate.hard_worlds import FOUND_WORLDS, NULL_WORLDS, HardSimulation, equal, of, rewarded, then_few
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.trial import warm

from slipstream_proxy.control.gate.detector import (
    BET_SIZES,
    MAX_APART,
    NONE_MISSING,
    TESTED_SHIFTS,
    BettingDetector,
    Missing,
    SeenRun,
)
from slipstream_proxy.control.gate.groups import GroupWatch
from slipstream_proxy.control.gate.guards import Guard
from slipstream_proxy.control.gate.line import BORNE_OUT, FEW_RATED_SHARE, Deadline
from slipstream_proxy.control.gate.report import report_of
from slipstream_proxy.control.gate.rules import Decision, TrialSettings, outcome_of
from slipstream_proxy.control.gate.trial import GateTrial

UNIT, SHARE = st.floats(0, 1), st.floats(0.05, 0.95)
NAMES = {0: "tiny", 1: "tiny@1"}


RUN = st.one_of(st.none(), UNIT)


def seen(
    x: float | None,
    expected: float,
    tested: bool,
    share: float,
    sign: int = 1,
    margin: float = 0.0,
    shifts: bool = False,
) -> BettingDetector:
    detector = BettingDetector(sign, 1.0, 0.0, shifts=shifts, margin=margin)
    detector.of_poor, detector.of_good = 0.3 * expected, 0.1
    detector.see(x, expected, tested, share, partial=True)
    return detector


@settings(max_examples=200, deadline=None, derandomize=True)
@given(x=RUN, expected=UNIT, share=SHARE, sign=st.sampled_from([1, -1]))
def test_a_run_rated_or_not_changes_both_wealths_by_one_in_the_mean_over_the_arms_coin(x, expected, share, sign):
    """Whatever the baseline is, and whichever reward came."""
    before = BettingDetector(sign, 1.0, 0.0, shifts=False).wealths
    tested, reference = (seen(x, expected, arm, share, sign) for arm in (True, False))
    for i, was in enumerate(before):
        for a, b in ((tested.wealths[i], reference.wealths[i]), (tested.above[i], reference.above[i])):
            assert math.isclose(share * a + (1 - share) * b, was, rel_tol=1e-9)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    rated=st.tuples(UNIT, UNIT, UNIT, UNIT),
    rewards=st.tuples(UNIT, UNIT),
    expected=UNIT,
    share=SHARE,
    margin=st.sampled_from([0.0, 0.1]),
)
def test_bets_gain_only_where_poor_rewards_are_more_often_or_good_ones_less(rated, rewards, expected, share, margin):
    """A run of the tested arm has the poor reward with ``rated[0]``, else the good one with ``rated[1]``, else none; a
    run of the reference with ``rated[2]`` and ``rated[3]``. So of each question: by more than the margin, of the rated
    runs, each kind of reward by its part of it.
    """
    poor, good = min(rewards), max(rewards)
    before = BettingDetector(1, 1.0, 0.0).wealths
    gained = [[0.0] * len(before), [0.0] * len(before)]
    arms = [(share, True, rated[0], rated[1]), (1 - share, False, rated[2], rated[3])]
    for of_arm, tested, often_poor, often_good in arms:
        often_good *= 1.0 - often_poor
        kinds = ((poor, often_poor), (good, often_good), (None, 1.0 - often_poor - often_good))
        for x, often in kinds:
            detector = seen(x, expected, tested, share, margin=margin, shifts=True)
            for i, was in enumerate(before):
                gained[0][i] += of_arm * often * (detector.wealths[i] - was)
                gained[1][i] += of_arm * often * (detector.above[i] - was)
    p0, of_rated = min(max(expected, 0.02), 0.98), sum(a * (p + g * (1 - p)) for a, _, p, g in arms)
    below, above = (
        [sum(o * max(side * (x - p0), 0.0) for x, o in ((poor, p), (good, g * (1 - p)))) for p, g in pairs]
        for side, pairs in ((-1.0, (rated[:2], rated[2:])), (1.0, (rated[:2], rated[2:])))
    )
    for i in range(len(before)):
        d = TESTED_SHIFTS[i // len(BET_SIZES)]
        least = of_rated * (-d if d else margin)
        assert below[0] > below[1] + p0 * least - 1e-12 or gained[0][i] <= 1e-9
        assert above[0] < above[1] - (1.0 - p0) * least + 1e-12 or gained[1][i] <= 1e-9


def test_users_who_begin_to_err_the_other_way_find_no_wealth_that_waits_for_them():
    detector = BettingDetector(1, 0.3, 0.001, shifts=False)
    for _ in range(60):  # good ones come of the reference alone
        detector.see(1.0, 0.5, False, 0.5, partial=True)
        detector.see(None, 0.5, True, 0.5, partial=True)
    assert sum(detector.above) > 4 * sum(detector.wealths)
    detector.start()
    assert sum(detector.above) <= MAX_APART * sum(detector.wealths) + 1e-9


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(RUN, st.booleans(), SHARE), max_size=200), st.integers(1, 20))
def test_users_who_err_another_way_with_each_version_win_no_more_than_was_spare(runs, every):
    """``spare`` times the smaller wealth grows over a start, and the runs before it, with neither wealth alone: a
    supermartingale whichever of the two is one.
    """
    detector = BettingDetector(1, 1.0, 0.0, shifts=False)
    for first in range(0, len(runs), every):
        for x, tested, share in runs[first : first + every]:
            detector.see(x, 0.6, tested, share, partial=True)
        (poor, good), spare, apart = detector._totals(0), detector.spare, detector.apart
        detector.start()
        now = detector.spare * detector.wealth
        assert now <= spare * min(poor * min(apart, 1.0), good / max(apart, 1.0)) * (1.0 + 1e-9)
        assert max(detector._totals(0)) <= detector.spare * detector.wealth * (1.0 + 1e-9)
        assert 1.0 <= detector.spare <= spare


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(UNIT, UNIT, st.booleans(), SHARE, st.booleans()), max_size=40),
    st.lists(st.integers(0, 39), max_size=6),
)
def test_forgetting_puts_no_wealth_in(runs, forgets):
    """However often the rewards' scale changes: only what was earned comes in."""
    detector, put = BettingDetector(1, 0.3, 0.001), 0.3
    for i, (x, expected, tested, share, some) in enumerate(runs):
        detector.see(x, expected, tested, share, some)
        put += 0.001
        if i in forgets:
            was, earned = detector.wealth, detector.credit
            detector.forget()
            assert detector.wealth <= min(was, detector.put - earned) + earned + 1e-12
            assert detector.put <= put + 1e-12


LACKING = st.tuples(UNIT, st.booleans(), st.booleans())
"""Reward, whether a run is on trial, and whether it lacks its reward."""


def see_lacking(detector: BettingDetector, x: float, tested: bool, lacks: bool, borne_out: float) -> float:
    """→ ``borne_out`` with this run."""
    borne_out += 0.0 if tested else BORNE_OUT[not lacks]
    detector.see(0.0 if lacks else x, 0.7, tested, 0.6, missing=Missing(lacks, borne_out))
    return borne_out


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    before=st.lists(LACKING, max_size=30),
    rewards=st.tuples(UNIT, UNIT, UNIT),
    of_tested=UNIT,
    of_control=st.floats(0, FEW_RATED_SHARE),
    sign=st.sampled_from([1, -1]),
)
def test_once_few_of_the_controls_runs_are_rated_lacking_a_reward_wins_nothing(
    before, rewards, of_tested, of_control, sign
):
    """In the mean over the next three runs, which would get these rewards in either arm, at any rates, from any moment
    on. What counted was never more than what all that lack one, as the worst, would make.
    """
    detector, borne_out, mean = BettingDetector(sign, 1.0, 0.0, shifts=False), 0.0, 0.0
    for x, tested, lacks in before:
        borne_out = see_lacking(detector, x, tested, lacks, borne_out)
        assert detector.wealth <= detector.suspected() * (1.0 + 1e-9)
    kept, bound = json.loads(json.dumps(detector.dump())), detector.suspected()
    for coins in itertools.product((True, False), repeat=6):
        chance, now = 1.0, 0.0
        detector.load(kept)
        for x, tested, lacks in zip(rewards, coins[::2], coins[1::2], strict=True):
            rated = of_tested if tested else of_control
            chance *= (0.6 if tested else 0.4) * (1.0 - rated if lacks else rated)
            now = see_lacking(detector, x, tested, lacks, now)
        mean += chance * detector.wealth
    assert mean <= bound * (1.0 + 1e-9)


@pytest.mark.parametrize("name", [name for name in NULL_WORLDS if name.startswith("all rated, then")])
def test_users_who_stop_to_rate_one_arm_more_than_the_other_take_nothing_back(name):
    assert [HardSimulation(NULL_WORLDS[name], seed).play().rollbacks for seed in range(4)] == [0] * 4


@pytest.mark.parametrize("hung", [1.0, 0.4])
def test_versions_whose_runs_lack_rewards_are_taken_back_where_the_controls_get_theirs(hung):
    """All of them, or some."""
    world = of(0.8, rewarded, tasks="never", warm=1000, every=50_000, rates=partial(then_few, 0, 0.995, 1.0 - hung))
    assert all(HardSimulation(world, seed).play().rollbacks for seed in range(4))


def test_what_lacks_a_reward_is_kept_over_a_restart():
    detector, coin, borne_out = BettingDetector(1, 0.3, 0.001), random.Random(0), 0.0
    for _ in range(12):
        borne_out = see_lacking(detector, 0.7, coin.random() < 0.6, coin.random() < 0.3, borne_out)
    again = BettingDetector(1, 0.3, 0.001)
    again.load(json.loads(json.dumps(detector.dump())))
    assert detector.as_best and again.dump() == detector.dump()
    assert again.wealth == pytest.approx(detector.wealth)
    assert again.wealth < 0.9 * again.suspected()


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
    simulations = [HardSimulation(world, seed) for seed in range(3)]
    assert [s.play().rollbacks for s in simulations] == [0] * 3
    assert max(s.most for s in simulations) < -1.0


def test_each_version_may_be_rated_at_a_rate_of_its_own_while_everybody_drifts():
    world = NULL_WORLDS["rated 20 %, each version at a rate of its own, waves"]
    simulations = [HardSimulation(world, seed) for seed in range(2)]
    assert [s.play().rollbacks for s in simulations] == [0] * 2
    assert max(s.most for s in simulations) < -1.0


@pytest.mark.parametrize(
    "name", ["rated 88 %, × 0.25", "rated 95 %, one version × 0.25", "easy tasks rated × 0.25, hard ones × 1"]
)
def test_neither_chance_nor_tasks_that_are_rated_less_often_take_anything_back(name):
    assert [HardSimulation(NULL_WORLDS[name], seed).play().rollbacks for seed in range(2)] == [0] * 2


@pytest.mark.parametrize("first", [0, 60])
@pytest.mark.parametrize("lost", [0.08, 0.05])
def test_that_nearly_all_runs_get_a_reward_has_to_be_shown(lost, first):
    """A twentieth or more get none: at the end of 300 runs it is seldom thought that nearly all get one, also if the
    first ones all got one.
    """
    wrong = 0
    for seed in range(200):
        deadline, coin = Deadline(), random.Random(seed)
        for i in range(300):
            deadline.see(None if i >= first and coin.random() < lost else 1.0, 0, tested=False)
        wrong += not deadline.sparse
    assert wrong <= 0.02 * 200


def test_a_version_whose_first_runs_get_none_is_not_blamed_before_that_is_shown():
    deadline = Deadline()
    for _ in range(64):
        deadline.see(1.0, 0, tested=False)
    deadline.lack()
    assert deadline.sparse
    for _ in range(80):
        deadline.see(1.0, 0, tested=False)
    deadline.lack()
    assert not deadline.sparse


def test_few_lost_rewards_do_not_hide_versions_that_hang():
    """One of a hundred gets none: that nearly all get one is known after 500 runs, also after an outage and a
    restart.
    """
    known = again = 0
    for seed in range(100):
        deadline, coin = Deadline(), random.Random(seed)
        for _ in range(500):
            deadline.see(None if coin.random() < 0.01 else 1.0, 0, tested=False)
        known += not deadline.sparse
        for _ in range(40):
            deadline.see(None, 0, tested=False)
        assert deadline.sparse
        later = Deadline()
        later.load(json.loads(json.dumps(deadline.dump())))
        assert later.sparse
        for _ in range(800):
            later.see(None if coin.random() < 0.01 else 1.0, 0, tested=False)
        again += not later.sparse
    assert known >= 95 and again >= 95


def test_who_rates_less_often_is_shown_by_arm_and_a_person_is_asked():
    simulation = HardSimulation(equal(0.9, rated=0.5, ratio=0.3, episodes=900, every=10_000), 2)
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
    world = equal(0.6, polite=0.3, rated=0.3, ratio=0.5, episodes=3000)
    runs = [HardSimulation(world, seed).play() for seed in range(4)]
    assert [(r.rollbacks, r.frozen) for r in runs] == [(0, None)] * 4


@pytest.mark.parametrize(("usual", "now"), [(0.9, 0.0), (0.98, 0.3), (0.1, 0.6)])
def test_a_guard_and_a_group_that_collapse_are_found_where_few_runs_are_rated(usual, now):
    """However near to a bound the usual value is: each kind of reward bears its part of the margin alone."""
    coin = random.Random(0)
    guard, group = Guard("reward.polite", "up" if now > usual else "down"), GroupWatch()
    group.count(["a"] * 20)
    guard.reset(fresh=True)
    for _ in range(2000):
        tested = coin.random() < 0.8
        known = float(coin.random() < (now if tested else usual)) if coin.random() < 0.3 else None
        guard.see(known, "", tested, 0.8)
        better = known if guard.bad == "down" or known is None else 1.0 - known
        expected = usual if guard.bad == "down" else 1.0 - usual
        group.see(["a"], SeenRun(better, expected, tested, 0.8, True, NONE_MISSING), best=False)
        if known is not None:
            group.learn(["a"], better or 0.0, tested=tested)
    assert guard.detector.wealth >= 100.0
    assert group.slots["a"].detectors[0].growth() >= 1e4


@pytest.mark.parametrize("name", FOUND_WORLDS)
def test_the_worst_null_worlds_that_a_search_found_take_nothing_back(name):
    """``benchmarks.gate.search_null`` found them, on this code or on an earlier one."""
    runs = [HardSimulation(FOUND_WORLDS[name], seed).play() for seed in range(2)]
    assert [(r.rollbacks, r.frozen) for r in runs] == [(0, None)] * 2
