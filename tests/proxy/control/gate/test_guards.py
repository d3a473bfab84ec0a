from __future__ import annotations

import json
import random

import pytest
from tests.support.trial import warm

from slipstream.shared.error_budget import GUARD_STAKE
from slipstream_proxy.assignment import assign
from slipstream_proxy.control.gate.guards import GuardWatch
from slipstream_proxy.control.gate.report import report_of, verdict_reason
from slipstream_proxy.control.gate.rules import Decision, TrialSettings, outcome_of
from slipstream_proxy.control.gate.shares import arms_of, shares_of
from slipstream_proxy.control.gate.suspicion import alarm, doubted_guard, is_frozen, is_trusted
from slipstream_proxy.control.gate.trial import GateTrial

NAMES = {0: "tiny", 1: "tiny@1"}


def hacked(action: str, name: str = "cut_off", bad: str = "up", worse: float = 0.6, n: int = 2000, usual: float = 0.1):
    """The reward rises from 0.5 to 0.55, and a side measure of ``usual`` is another one on trial. → (trial, verdict)"""
    settings = TrialSettings(shifts=False, guards={name: bad}, guard_action=action)  # type: ignore[dict-item,arg-type]
    trial, coin = warm(settings, reward=0.5, n=0), random.Random(0)
    for i in range(60):
        trial.observe(outcome_of(0, "live", "", "", float(i % 2)))
    trial.serve(1)
    for i in range(n):
        got = assign(str(trial.live), [(str(v), a, s) for v, a, s in arms_of(trial)], "k", None, f"e{i}")
        tested = got.adapter == "1"
        reward = float(coin.random() < (0.55 if tested else 0.5))
        run = outcome_of(int(got.adapter), got.arm, got.chances, "", reward, trial.tried)
        run.measures = {name: float(coin.random() < (worse if tested else usual))}
        if (decision := trial.observe(run)) is not Decision.UNDECIDED:
            return trial, decision
    return trial, Decision.UNDECIDED


def test_reward_up_and_a_guard_down_waits_for_a_person_and_says_what_to_do():
    trial, decision = hacked("freeze")
    assert decision is Decision.UNDECIDED and trial.runs.since >= trial.settings.settle
    assert is_frozen(trial) and trial.waits("go")
    assert shares_of(trial) == (0.5, 0.0)
    report = report_of(trial, NAMES)
    assert report.reason.startswith("frozen: cut_off rose from 0") and report.episodes_left is None
    assert report.fix is not None
    assert "slipstream episodes --adapter tiny@1" in report.fix and "slipstream adapters demote tiny@1" in report.fix
    (guard,) = report.guards
    assert guard.evidence >= report.threshold and guard.trial is not None and guard.control is not None
    assert guard.trial > 0.5 > 0.2 > guard.control
    trial.decide_by_hand(1)
    assert not is_frozen(trial) and trial.evidence.guards.guards[0].detector.growth() == 1.0


def test_suspicion_of_a_guard_gives_the_control_more_and_says_so():
    trial, decision = hacked("freeze", n=40)
    assert decision is Decision.UNDECIDED and not is_frozen(trial) and trial.evidence.guards.growth() > 2.0
    assert shares_of(trial) == (0.5, 0.0) and not is_trusted(trial)
    reason = report_of(trial, NAMES).reason
    assert reason.startswith("cut_off rose from 0") and "may still be chance" in reason


def test_a_guard_can_take_a_version_back_by_itself():
    trial, decision = hacked("rollback")
    assert decision is Decision.ROLLBACK
    assert verdict_reason(trial, NAMES, decision).startswith("a guard is worse than with tiny: cut_off rose from 0")
    assert trial.runs.since < 200
    trial.roll_back(False, 1)
    assert not trial.on_trial and alarm(trial) is None


def test_a_guard_can_only_speak():
    trial, decision = hacked("say")
    assert decision is Decision.ACCEPT
    assert ", but cut_off rose from 0." in verdict_reason(trial, NAMES, decision)


@pytest.mark.parametrize(
    ("name", "bad", "worse"), [("cut_off", "up", 0.1), ("cut_off", "up", 0.17), ("reward.polite", "down", 0.6)]
)
def test_what_is_as_before_or_better_or_within_the_margin_freezes_nothing(name, bad, worse):
    trial, decision = hacked("freeze", name, bad, worse)
    assert decision is Decision.ACCEPT and alarm(trial) is None


@pytest.mark.parametrize(("usual", "freezes"), [(0.15, True), (0.44, False)])
def test_replies_that_are_cut_off_anyway_freeze_nothing_when_more_are(usual, freezes):
    trial, decision = hacked("freeze", worse=0.85, usual=usual)
    assert is_frozen(trial) == freezes and (decision is Decision.ACCEPT) != freezes


def test_a_model_that_refuses_mostly_may_not_refuse_more():
    trial, _ = hacked("freeze", "refusals", worse=0.9, usual=0.6)
    assert is_frozen(trial)


def test_a_measure_of_any_range_is_watched_in_its_bad_direction():
    watch, coin = GuardWatch({"reply_tokens": "up", "seconds": "down"}), random.Random(1)
    for _ in range(600):
        tested = coin.random() < 0.5
        tokens = coin.gauss(5000 if tested else 400, 100)
        watch.see({"reply_tokens": tokens, "seconds": tokens}, "", tested, 0.5)
    assert (found := watch.alarmed(0.01)) is not None and found.name == "reply_tokens"
    assert watch.guards[1].detector.growth() < 0.1
    means = found.means()
    assert means is not None and means[0] == pytest.approx(400, abs=20) and means[1] == pytest.approx(5000, abs=20)


def test_a_guard_puts_in_no_more_than_its_own_error_level():
    (guard,) = (watch := GuardWatch({"turns": "up"})).guards
    put = 0.0
    for i in range(2000):
        watch.see({"turns": float(i % 3)}, "", i % 10 != 0, 0.9)
        watch.start()
        put = max(put, guard.detector.put + guard.detector.credit)
    assert put <= GUARD_STAKE.after(2000) + 1e-12


def test_where_a_measure_is_unknown_nothing_is_counted():
    watch = GuardWatch({"reward.polite": "down"})
    watch.see({"turns": 2.0}, "", True, 0.5)
    assert watch.guards[0].detector.n_tested == 0 and watch.guards[0].means() is None


def test_what_it_keeps_goes_on_where_it_was_unless_the_bad_direction_is_another_one():
    trial, _ = hacked("freeze", n=100)
    kept = json.loads(json.dumps(trial.dump()))
    again = GateTrial(trial.settings)
    again.load(kept)
    assert again.evidence.guards.dump() == trial.evidence.guards.dump()
    turned = GateTrial(TrialSettings(shifts=False, guards={"cut_off": "down"}))
    turned.load(kept)
    assert turned.evidence.guards.guards[0].detector.n_tested == 0
    without = GateTrial(trial.settings)
    without.load({k: v for k, v in kept.items() if k != "guards"})
    assert without.evidence.guards.guards[0].detector.n_tested == 0


def test_a_freeze_does_not_thaw_by_itself_nor_by_a_restart():
    """By chance or not, later runs look good again: the guard was shown to be worse, so a person decides."""
    trial, _ = hacked("freeze", n=300)
    assert is_frozen(trial)
    trial.evidence.guards.guards[0].detector.reset()
    trial.watch.doubt = True  # of the rewards' scale: the guard is about something else
    assert is_frozen(trial) and shares_of(trial) == (0.5, 0.0) and trial.waits("go") and not is_trusted(trial)
    again = GateTrial(trial.settings)
    again.load(json.loads(json.dumps(trial.dump())))
    assert is_frozen(again) and report_of(again, NAMES).reason.startswith("frozen: cut_off")
    again.frozen_by_hand = False
    assert not is_frozen(again)
    for ends in (lambda t: t.serve(2), lambda t: t.accept(), lambda t: t.roll_back(False, 1)):
        freed = GateTrial(trial.settings)
        freed.load(json.loads(json.dumps(trial.dump())))
        ends(freed)
        assert not is_frozen(freed), "another version is on trial, or none"


@pytest.mark.parametrize(("share", "margin"), [(0.0, 0.01), (0.03, 0.03), (0.3, 0.1)])
def test_the_margin_of_a_share_that_is_rare_is_that_share(share, margin):
    watch = GuardWatch({"tool_errors": "up"})
    for i in range(600):
        watch.see({"tool_errors": float(i % 100 < 100 * share)}, "", False, 0.9)
    assert watch.guards[0].detector.margin == pytest.approx(margin, abs=0.02 * (0.0 < share < 0.1))


def test_a_rare_event_that_becomes_frequent_holds_back_an_acceptance_and_one_that_does_not_holds_nothing():
    for often, waits in ((0.05, True), (0.01, False)):
        trial = GateTrial(TrialSettings(shifts=False, guards={"tool_errors": "up"}))
        trial.serve(1)
        for i in range(600):
            live = i % 10 > 0
            run = outcome_of(int(live), "live" if live else "control", "live=0.9 control=0.1", "", float(i % 2), 1)
            run.measures = {"tool_errors": float(i % 100 < 100 * often)} if live else {"tool_errors": 0.0}
            trial.observe(run)
        assert (doubted_guard(trial) is not None) == waits
        assert waits != is_trusted(trial)
        assert ("tool_errors rose from 0" in report_of(trial, NAMES).reason) == waits
