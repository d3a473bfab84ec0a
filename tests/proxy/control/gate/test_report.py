from __future__ import annotations

import json
import random

import pytest
from tests.support.trial import play, success, warm

from slipstream_proxy.control.gate.report import reading_of, report_of
from slipstream_proxy.control.gate.rules import Decision, HeldOut, TrialSettings, outcome_of
from slipstream_proxy.control.gate.shares import shares_of
from slipstream_proxy.control.gate.trial import GateTrial

NAMES = {0: "tiny", 1: "tiny@1", 2: "tiny@2"}


def served(trial: GateTrial) -> GateTrial:
    trial.serve(1)
    return trial


def equal() -> GateTrial:
    trial = served(warm())
    play(trial, 30, lambda *_: 1.0)
    return trial


def warm_mixed() -> GateTrial:
    trial = warm()
    for i in range(20):
        trial.observe(outcome_of(0, "live", "", "", float(i % 2)))
    return trial


def late(served_now: int) -> GateTrial:
    trial = served(warm_mixed())
    for _ in range(130):  # nearly all runs get a reward
        trial.deadline.see(1.0, 0, tested=False)
    for _ in range(3):
        run = outcome_of(1, "live", "live=0.7 control=0.3", "", 0.0, 1)
        run.finished = False
        trial.observe(run)
    if served_now > 1:
        trial.serve(served_now)
    return trial


def test_what_it_says_of_a_version_is_of_that_versions_own_runs():
    trial = served(warm_mixed())
    play(trial, 60, success({0: 0.5, 1: 0.5}))
    before = trial.runs.since
    trial.serve(2)
    play(trial, 4, success({0: 0.5, 2: 0.5}), seed=7)
    report = report_of(trial, NAMES)
    assert report.own_episodes == trial.runs.own < report.trial_episodes == trial.runs.since > before
    play(trial, 300, lambda coin, version: 0.9 if version == 2 else float(coin.random() < 0.5), seed=8)
    report = report_of(trial, NAMES)
    assert 0.3 < report.own_difference < 0.5 and report.difference < report.own_difference - 0.01
    again = GateTrial(trial.settings)
    again.load(json.loads(json.dumps(trial.dump())))
    assert report_of(again, NAMES) == report
    assert (
        f"{trial.runs.own} runs of tiny@2; the difference is of all {trial.runs.since} runs on trial" in report.reason
    )


def test_a_canarys_report_says_who_gets_it_and_counts_all_new_runs():
    """Of 500 runs of its own, 16 take a share of 1 % and 16 one of 10 %."""
    trial = served(warm(TrialSettings(canary=True, plan=[0.01, 0.1, 0.5])))
    assert report_of(trial, NAMES).gets == (
        "1% of new runs get tiny@1 (stage 1 of 3): 10% after 16 more of its runs without suspicion"
    )

    def ended(runs: int) -> None:
        for n in range(runs):
            trial.observe(outcome_of(1, "candidate", "live=0.5 candidate=0.5", "", 1.0, 1))
            trial.observe(outcome_of(0, "live", "live=0.5 candidate=0.5", "", float(n % 3 > 0), 1))

    ended(6)
    report = report_of(trial, NAMES)
    assert (report.stage, report.trial_share, report.control_share) == (1, 0.01, 0.99)
    assert report.episodes_left == 10 / 0.01 + 16 / 0.1 + (500 - 6 - 26) / 0.5
    ended(28)
    report = report_of(trial, NAMES)
    assert report.gets == "50% of new runs get tiny@1 (stage 3 of 3): a verdict comes next"
    assert report.episodes_left == (500 - 34) / 0.5
    first = served(warm(TrialSettings(canary=True, plan=[0.01, 0.1], first=["tag.team=us"])))
    assert report_of(first, NAMES).gets.startswith("50% of the new runs of tag.team=us, and no others, get tiny@1 (sta")
    assert report_of(first, NAMES).episodes_left is None


def test_the_best_versions_share_shrinks_where_rewards_say_that_it_was_beaten():
    trial = warm(TrialSettings(settle=20, holdout=0.3), reward=0.0)
    trial.serve(1)
    decision, _ = play(trial, 400, success({0: 0.5, 1: 0.5}))
    assert decision is Decision.ACCEPT
    trial.accept()
    calm = shares_of(trial)[1]
    trial.hold_out(HeldOut(100, 0.3, 0.46), HeldOut(40, 0.62, 0.49))
    assert shares_of(trial)[1] == calm / 4, "held-out runs say it"
    trial.hold_out(HeldOut(100, 0.3, 0.46), HeldOut(8, 1.0, 0.0))
    assert shares_of(trial)[1] == calm, "too few"
    play(trial, 40, success({0: 0.3, 1: 0.9}))
    assert 0 < shares_of(trial)[1] < calm and trial.control != trial.best


def test_a_verdict_and_its_interval_agree():
    trial = warm()
    trial.serve(1)
    decision, _ = play(trial, 400, success({0: 0.9, 1: 0.2}))
    assert decision is Decision.ROLLBACK
    report = report_of(trial, NAMES, decision)
    assert (report.decision, report.control, report.reason) == ("rollback", "tiny", "worse than tiny")
    assert report.lower <= report.difference <= report.upper <= 0
    assert report.evidence >= report.threshold == 100


def test_without_a_verdict_zero_is_inside():
    trial = warm(reward=0.0)
    trial.serve(1)
    play(trial, 100, success({0: 0.5, 1: 0.5}))
    report = report_of(trial, NAMES)
    assert report.decision == "undecided" and report.lower < 0 < report.upper and report.evidence < 100
    assert report.episodes_left is not None


def slid(seed: int) -> tuple[GateTrial, Decision]:
    """Versions that are each a little worse, until one is taken back or none comes any more."""
    trial = warm(TrialSettings(settle=60, holdout=0.3), reward=0.5)
    chance = {v: 0.9 - 0.05 * v for v in range(16)}
    for version in range(1, 16):
        trial.serve(version)
        decision, _ = play(trial, 200, success(chance), seed * 100 + version)
        if decision in (Decision.ROLLBACK, Decision.ROLLBACK_BEST):
            return trial, decision
        if decision is Decision.ACCEPT:
            trial.accept()
    return trial, Decision.UNDECIDED


def test_the_numbers_of_every_verdict_are_those_that_decided():
    decisions = set()
    for seed in range(30):
        trial, decision = slid(seed)
        decisions.add(decision)
        report = report_of(trial, {v: f"tiny@{v}" for v in range(20)}, decision)
        if decision is Decision.UNDECIDED:
            continue
        assert report.lower <= report.difference <= report.upper <= 0, (seed, report)
        assert report.reason.startswith(f"worse than {report.control}")
        assert -0.65 < report.difference, (seed, report)
        if decision is Decision.ROLLBACK_BEST:
            assert report.control == report.best and report.difference == report.drift_difference
    assert {Decision.ROLLBACK, Decision.ROLLBACK_BEST} <= decisions


@pytest.mark.parametrize("seed", range(4))
def test_before_a_verdict_zero_is_inside_at_every_moment(seed: int):
    trial = warm(TrialSettings(holdout=0.3), reward=0.5)
    for version in range(1, 8):
        trial.serve(version)
        for i in range(20):
            decision, _ = play(
                trial, 1, success(dict.fromkeys(range(9), 0.7) | {version: 0.5}), 1000 * seed + 20 * version + i
            )
            report = report_of(trial, {}, decision)
            if decision is Decision.UNDECIDED:
                assert report.upper is None or report.upper > 0 > report.lower
            else:
                assert report.upper <= 0 or report.lower >= 0 or decision is Decision.ACCEPT
                return


def coarse() -> GateTrial:
    trial = served(warm_mixed())
    play(trial, 20, lambda *_: 0.5)
    trial.scale.low, trial.scale.high, trial.scale.ring = 0.0, 100.0, [50.0 + i % 3 for i in range(200)]
    return trial


def below_the_best() -> GateTrial:
    """@1 was accepted, and the base model is the best one still."""
    trial = served(warm_mixed())
    trial.accept()
    trial.serve(2)
    play(trial, 20, lambda *_: 0.5)
    bets = trial.evidence.worse_best
    bets.wealths = [3.0 / bets.growth() * wealth for wealth in bets.wealths]
    return trial


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (coarse, "the newest 128 rewards lie in a small part of the range [0, 100]"),
        (below_the_best, "rewards are lower than tiny's, but that may still be chance"),
        (warm, "no adapter is on trial"),
        (lambda: served(GateTrial(TrialSettings())), "no finished episode has a reward yet"),
        (lambda: served(warm(TrialSettings(holdout=0.0))), "gate.holdout is 0"),
        (equal, "nearly all rewards are 1"),
        (
            lambda: served(warm(TrialSettings(reward_range=(0, 1)), 100.0)),
            "40 of 40 rewards lie outside gate.reward_range",
        ),
        (lambda: served(warm(TrialSettings(canary=True, share=0.0))), "gate.share is 0"),
        (lambda: served(warm_mixed()), "no run of tiny@1 counts yet"),
        (
            lambda: late(1),
            "no run of tiny@1 counts yet: runs count as they began, once each has its reward or its deadline is over; 3 timed out",
        ),
        (lambda: late(2), "no run of tiny@2 counts yet"),
    ],
)
def test_it_says_why_it_cannot_decide(make, words):
    report = report_of(make(), NAMES)
    assert words in report.reason and report.decision == "undecided"


def test_a_person_decides_in_manual_mode():
    report = report_of(served(warm()), NAMES, manual=True)
    assert "manual" in report.reason and "promote" in (report.fix or "")


def test_suspicion_says_how_long_it_may_take():
    trial = served(warm())
    play(trial, 8, lambda _, v: float(v == 0))
    report = report_of(trial, NAMES, waiting=["tiny@2"])
    assert "may still be chance" in report.reason and report.waiting == ["tiny@2"]
    assert report.control_share == pytest.approx(0.5)


def test_a_canary_that_is_clearly_better_shows_its_difference_and_interval():
    """The best version's own bets have no run of the candidate, and look surer where the canary loses nothing."""
    trial = GateTrial(TrialSettings(canary=True, plan=[0.05, 0.3]))
    for n in range(40):
        trial.observe(outcome_of(0, "live", "", "", float(n % 5 < 2)))
    trial.serve(1)
    coin, reward = random.Random(0), success({0: 0.4, 1: 0.78})
    for i in range(1003):
        version, arm = (1, "candidate") if i % 7 in (3, 4) else (0, "live")
        trial.observe(outcome_of(version, arm, "live=0.7 candidate=0.3", "", reward(coin, version), 1))
    report = report_of(trial, NAMES)
    assert (report.own_episodes, report.trial_episodes, report.control_episodes) == (286, 286, 717)
    assert trial.control == trial.best and trial.evidence.worse_best.wealth > trial.evidence.worse.wealth
    assert 0 < report.lower <= report.difference <= report.upper and report.difference < 0.6
    reading = reading_of(trial, 1, 1.0)
    assert (reading.difference, reading.lower, reading.upper) == (report.difference, report.lower, report.upper)
