"""A change of the rewards' scale is noticed, and nothing is decided across it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from benchmarks.gate.timed import TimedWorld
from benchmarks.gate.timed import play as timed
from tests.support.trial import play, success, warm

from slipstream_proxy.control.gate.line import AssignmentLine
from slipstream_proxy.control.gate.report import report_of
from slipstream_proxy.control.gate.rules import Decision, TrialSettings, outcome_of
from slipstream_proxy.control.gate.scale import ScaleWatch
from slipstream_proxy.control.gate.verdict import evidence_against, verdict_on

Draw = Callable[[random.Random], float]


def binary(coin: random.Random) -> float:
    return float(coin.random() < 0.7)


def points(coin: random.Random) -> float:
    return coin.random()


def rounded(coin: random.Random) -> float:
    return round(coin.random(), 1)


def noticed(before: Draw, after: Draw, seed: int, runs: int = 60) -> int | None:
    """→ After how many rewards of the reference arm on the new scale."""
    coin, watch = random.Random(seed), ScaleWatch()
    for i in range(600):
        assert not watch.see(before(coin), f"t{i}")
    for i in range(runs):
        if watch.see(after(coin), f"n{i}"):
            return i + 1
    return None


@pytest.mark.parametrize("before", [binary, points, rounded])
@pytest.mark.parametrize("factor", [0.01, 0.1, 10.0, 100.0])
def test_another_scale_is_noticed_within_a_few_rewards(before, factor):
    assert all((noticed(before, lambda c: factor * before(c), seed) or 99) <= 30 for seed in range(10))


def test_passes_that_become_points_and_a_shift_are_noticed():
    assert all((noticed(binary, points, s) or 99) <= 10 for s in range(10))
    assert all((noticed(binary, lambda c: binary(c) + 5.0, s) or 99) <= 10 for s in range(10))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (binary, lambda c: float(c.random() < 0.1)),
        (binary, lambda _: 0.0),
        (points, lambda c: c.random() ** 2),
        (lambda c: c.lognormvariate(0.0, 2.0), lambda c: c.lognormvariate(0.0, 2.0)),
        (lambda c: -100.0 if c.random() < 0.01 else c.random(), points),
    ],
)
def test_other_tasks_and_rare_rewards_are_no_other_scale(before, after):
    assert [noticed(before, after, seed, 400) for seed in range(10)] == [None] * 10


def test_what_is_known_of_the_scale_is_kept_over_a_restart():
    coin, watch = random.Random(1), ScaleWatch()
    for i in range(200):
        watch.see(binary(coin), f"t{i}")
    again = ScaleWatch()
    again.load(json.loads(json.dumps(watch.dump())))
    assert again.dump() == watch.dump() and (again.counts, again.single) == (watch.counts, watch.single)


def test_total_failure_on_a_new_scale_is_taken_back_and_not_accepted():
    """Rewards of 0 and 100 become rewards of 0 and 1 with a version that always fails."""
    trial = warm(TrialSettings(shifts=False), reward=100.0)
    coin = random.Random(2)
    play(trial, 400, lambda *_: 100.0 * binary(coin))
    trial.serve(1)
    decision, _ = play(trial, 90, success({0: 0.7, 1: 0.0}))
    assert trial.rescaled == 1 and trial.scale.high <= 1.0
    report = report_of(trial, {0: "tiny", 1: "tiny@1"}, decision)
    if decision is Decision.UNDECIDED and trial.unsettled:
        assert "the scale of rewards has changed" in report.reason
    if decision is Decision.UNDECIDED:
        decision, _ = play(trial, 400, success({0: 0.7, 1: 0.0}), seed=1)
    assert decision is Decision.ROLLBACK


def test_while_it_is_not_clear_there_is_no_verdict():
    trial = warm(TrialSettings(shifts=False), reward=1.0)
    coin = random.Random(2)
    play(trial, 200, lambda *_: binary(coin))
    trial.serve(1)
    trial.watch.doubt = True
    trial.evidence.worse.wealth = 1e6
    assert verdict_on(trial) is Decision.UNDECIDED
    assert "unlike all before" in report_of(trial, {}).reason


@pytest.mark.parametrize(
    ("factor", "by_start", "first"), [(0.01, True, 20.0), (0.01, False, 0.0), (100.0, True, 20.0), (100.0, False, 0.0)]
)
def test_rewards_of_the_old_scale_that_come_late_do_not_hide_a_loss_on_the_new_one(factor, by_start, first):
    """50 runs a second of 30 seconds. The scale changes while thousands run, by when they began or by when they end;
    then, or in the midst of it, success falls from 0.6 to 0.2.
    """
    world = TimedWorld(50.0, quality=0.2, durations="lognormal", factor=factor, change=20.0, by_start=by_start)
    run = timed(replace(world, first=first, warm=1000, counted=8000), 0)
    assert run.rolled_back is not None and run.accepted == 0


def test_runs_that_began_before_a_declared_change_do_not_count():
    trial = warm(TrialSettings(shifts=False))
    trial.declare(100.0)
    line = AssignmentLine(trial.deadline)
    for i in range(40):
        line.assign(2 * i, f"e{i}", 99.0 + i % 2 * 2, outcome_of(0, "live", "", "", 0.0), compared=False)
    for i in range(40):
        line.end(100 + i, f"e{i}", 150.0, outcome_of(0, "live", "", "", 100.0 if i % 2 == 0 else 1.0), compared=False)
        run = line.take(150.0, 0)
        assert run is not None
        trial.observe(run)
    assert trial.scale.count == 20 and trial.scale.high == 1.0


@pytest.mark.parametrize("sticky", [0.9, 0.97])
def test_rewards_that_follow_each_other_are_no_other_scale(sticky):
    for seed in range(6):
        coin, watch, level = random.Random(seed), ScaleWatch(), 0.0
        found = 0
        for i in range(2400):
            level = sticky * level + (1.0 - sticky**2) ** 0.5 * coin.gauss(0.0, 0.2)
            found += watch.see(min(max(0.5 + level + coin.gauss(0.0, 0.05), 0.0), 1.0), f"t{i}")
        assert not found


@pytest.mark.parametrize("period", [400, 1000])
def test_a_days_curve_is_no_other_scale(period):
    for seed in range(6):
        coin, watch = random.Random(seed), ScaleWatch()
        curve = [0.5 + 0.3 * math.sin(2.0 * math.pi * i / period) for i in range(2400)]
        assert not any(watch.see(level + coin.gauss(0.0, 0.05), f"t{i}") for i, level in enumerate(curve))


def test_changes_of_scale_put_no_evidence_in():
    trial = warm(TrialSettings(shifts=False))
    trial.serve(1)
    put = [d.put + d.credit for d in (trial.evidence.worse, trial.evidence.worse_best)]
    for change in range(12):
        play(trial, 40, lambda c, _: float(c.random() < 0.7), seed=change)
        trial.rewards_changed(0.0)
    rates = (trial.evidence.worse.rate, trial.evidence.worse_best.rate)
    found = [d.put + d.credit for d in (trial.evidence.worse, trial.evidence.worse_best)]
    assert all(f <= p + 12 * 40 * r + 1e-12 for f, p, r in zip(found, put, rates, strict=True))
    assert evidence_against(trial) < 1.0
    assert trial.rescaled == 12
