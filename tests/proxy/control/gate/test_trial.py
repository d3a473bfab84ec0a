from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from benchmarks.gate.hard_worlds import WORSE_WORLDS, HardSimulation
from tests.support.trial import play, success, warm

from slipstream_proxy.assignment import assign, tried
from slipstream_proxy.control.gate.report import report_of
from slipstream_proxy.control.gate.rules import Decision, TrialSettings, outcome_of
from slipstream_proxy.control.gate.shares import arms_of, shares_of
from slipstream_proxy.control.gate.suspicion import is_trusted
from slipstream_proxy.control.gate.trial import GateTrial
from slipstream_proxy.control.gate.verdict import verdict_on


def test_one_that_always_fails_goes_at_once():
    for seed in range(20):
        trial = warm()
        trial.serve(1)
        decision, live = play(trial, 200, success({0: 1.0, 1: 0.0}), seed)
        assert decision is Decision.ROLLBACK and live <= 40


def test_nineteen_in_a_row_are_not_better_than_one():
    """Each is replaced before it can be judged alone."""
    trial, live = warm(), 0
    for version in range(1, 20):
        trial.serve(version)
        decision, more = play(trial, 6, lambda _, v: float(v == 0), version)
        live += more
        if decision is Decision.ROLLBACK:
            break
    assert decision is Decision.ROLLBACK and version > 1 and live <= 40
    trial.roll_back(False, version)
    assert arms_of(trial) == [] and trial.live == 0


def test_after_a_rollback_the_next_bad_one_goes_as_fast():
    trial = warm()
    for version in (1, 2, 3):
        trial.serve(version)
        decision, live = play(trial, 200, lambda _, v: float(v == 0), version)
        assert decision is Decision.ROLLBACK and live <= 40
        trial.roll_back(False, version)


def test_one_enormous_reward_in_the_control_arm_hides_nothing():
    for seed in range(10):
        trial = warm()
        trial.serve(1)
        enormous = iter([1e6])
        decision, _ = play(trial, 200, lambda _, v: next(enormous, 1.0) if v == 0 else 0.0, seed)  # noqa: B023
        assert decision is Decision.ROLLBACK


def test_tiny_rewards_are_as_good_as_large_ones():
    for unit in (0.01, 1e6):
        trial = warm(reward=unit)
        trial.serve(1)
        decision, live = play(trial, 400, lambda coin, v: unit * coin.random() * (v == 0))  # noqa: B023
        assert decision is Decision.ROLLBACK and live < 150


def test_an_unsuspected_one_is_accepted_and_best_stays_until_it_is_beaten():
    trial = warm(TrialSettings(settle=60))
    trial.serve(1)
    decision, _ = play(trial, 400, success({0: 0.7, 1: 0.7}), 1)
    assert decision is Decision.ACCEPT
    trial.accept()
    assert (trial.control, trial.best) == (1, 0)
    assert [arm for _, arm, _ in arms_of(trial)] == ["best"]


def test_one_that_is_clearly_better_becomes_the_best():
    trial = warm(reward=0.0)
    trial.serve(1)
    decision, _ = play(trial, 400, success({0: 0.1, 1: 0.9}))
    assert decision is Decision.ACCEPT
    trial.accept()
    assert (trial.control, trial.best) == (1, 1) and arms_of(trial) == []


def test_a_slow_slide_goes_back_to_the_best():
    """Each version is accepted although it is a little worse."""
    trial = warm(TrialSettings(settle=100))
    quality = {0: 0.9}
    for version in range(1, 12):
        quality[version] = 0.9 - 0.05 * version
        trial.serve(version)
        decision, _ = play(trial, 400, success(quality), version)
        if decision is Decision.ACCEPT:
            trial.accept()
        elif decision in (Decision.ROLLBACK, Decision.ROLLBACK_BEST):
            break
    assert decision in (Decision.ROLLBACK, Decision.ROLLBACK_BEST)
    trial.roll_back(decision is Decision.ROLLBACK_BEST, version)
    assert trial.live == trial.control and quality[trial.live] > 0.7


def test_suspicion_gives_the_control_up_to_one_half():
    trial = warm()
    trial.serve(1)
    assert shares_of(trial) == (0.3, 0.0)
    play(trial, 6, lambda _, v: float(v == 0))
    assert shares_of(trial)[0] == pytest.approx(0.5)
    assert trial.waits("careful") and not trial.waits("go") and trial.waits(1) and not trial.waits(2)


def test_what_happened_before_the_control_moved_is_no_evidence():
    trial = warm()
    trial.serve(3)
    trial.roll_back(False, 3)
    trial.serve(4)
    for _ in range(50):
        trial.observe(outcome_of(3, "live", "live=0.9 control=0.1", "", 0.0))
    assert trial.runs.since == 0 and trial.evidence.worse.n_tested == 0


def test_an_evaluation_like_outcome_without_a_choice_is_no_evidence():
    trial = warm()
    trial.serve(1)
    for _ in range(50):
        assert trial.observe(outcome_of(1, "live", "", "", 0.0)) is Decision.UNDECIDED
    assert trial.evidence.worse.n_tested == 0


def test_by_hand_a_person_begins_a_new_question():
    trial = warm()
    trial.serve(1)
    play(trial, 10, lambda _, v: float(v == 0))
    trial.decide_by_hand(1)
    assert (trial.control, trial.best, trial.tried) == (1, 1, 1)
    assert arms_of(trial) == [] and verdict_on(trial) is Decision.UNDECIDED


def test_kept_over_a_restart_it_goes_on_as_if_nothing_had_happened():
    one = warm()
    one.serve(1)
    play(one, 20, success({0: 0.9, 1: 0.7}))
    other = GateTrial(TrialSettings())
    other.load(json.loads(json.dumps(one.dump())))
    for trial in (one, other):
        play(trial, 60, success({0: 0.9, 1: 0.7}), 7)
    assert one.dump() == other.dump()
    with pytest.raises((TypeError, KeyError, ValueError)):
        other.load({"versions": [1]})


@pytest.mark.parametrize("first", [[], ["tag.team=us"]])
def test_what_those_who_go_first_say_is_not_enough_for_everybody(first):
    trial = warm(TrialSettings(canary=True, plan=[0.2, 0.5], first=first), n=200)
    trial.serve(1)
    decision, _ = play(trial, 2000, success({0: 0.1, 1: 1.0}))
    assert decision is Decision.ACCEPT
    assert (trial.runs.own >= 32) is bool(first), "others have had some of its runs"


def test_a_canary_gets_its_share_and_is_taken_back():
    trial = warm(TrialSettings(canary=True, share=0.2))
    trial.serve(1)
    assert trial.live == 0 and arms_of(trial) == [(1, "candidate", 0.2)]
    decision, _ = play(trial, 400, lambda _, v: float(v == 0))
    assert decision is Decision.ROLLBACK


def test_what_it_keeps_does_not_grow_with_the_episodes():
    """Tasks that never repeat, and a version every 64: after the first thousands nothing gets larger."""
    trial, coin, sizes = GateTrial(TrialSettings(shifts=False)), random.Random(0), []
    for i in range(12_000):
        if i % 64 == 0:
            trial.serve(i // 64 + 1)
        arm = "control" if coin.random() < 0.2 else "live"
        version = trial.control if arm == "control" else trial.tried
        chances = "live=0.8 control=0.2"
        if trial.observe(outcome_of(version, arm, chances, f"t{i}", coin.gauss(0, 1))) is Decision.ACCEPT:
            trial.accept()
        if i in (7999, 11_999):
            sizes.append(len(json.dumps(trial.dump())))
    assert sizes[1] < 1.05 * sizes[0] < 400_000


def test_rewards_that_come_later_than_versions_do_not_keep_all_from_being_accepted():
    """A version every ten episodes, each reward 40 episodes late. One that serves until its rewards are there is accepted."""
    for pace, accepted in (("careful", True), ("go", False)):
        trial, coin, late, found = warm(), random.Random(0), [], []
        made = 0
        for i in range(3000):
            if i % 10 == 0:
                made += 1
            if made > trial.tried and not trial.waits(pace):
                trial.serve(made)
            arms = [(str(v), arm, share) for v, arm, share in arms_of(trial)]
            got = assign(str(trial.live), arms, "k", None, f"{i}")
            late.append(outcome_of(int(got.adapter), got.arm, got.chances, "", float(coin.random() < 0.7)))
            if i >= 40 and trial.observe(late[i - 40]) is Decision.ACCEPT:
                found.append(trial.tried)
                trial.accept()
        assert bool(found) is accepted


def test_versions_that_come_faster_than_rewards_wait_for_at_most_a_tenth_of_the_runs():
    """A version every 60 episodes, each reward 90 episodes late: as on a GPU, where a run is as long as a step."""
    trial, coin, late, made, accepted, held = warm(), random.Random(0), [], 0, 0, 0
    for i in range(20_000):
        made += i % 60 == 0
        waits = made > trial.tried and trial.waits("careful")
        held += waits
        if made > trial.tried and not waits:
            trial.serve(made)
        arms = [(str(v), arm, share) for v, arm, share in arms_of(trial)]
        got = assign(str(trial.live), arms, "k", None, f"{i}")
        late.append(outcome_of(int(got.adapter), got.arm, got.chances, "", float(coin.random() < 0.7)))
        if i >= 90 and trial.observe(late[i - 90]) is Decision.ACCEPT:
            accepted += 1
            trial.accept()
    assert accepted >= 5
    assert 0 < held < 0.12 * 20_000


@pytest.mark.parametrize("canary", [pytest.param(False, marks=pytest.mark.slow), True])
def test_what_still_runs_after_a_rollback_is_no_evidence(canary: bool):
    """Forty episodes run at once. The first version always fails; the second is as good as the control, and stays."""
    wrong = 0
    for seed in range(100):
        settings = TrialSettings(canary=canary, share=0.3)
        trial, coin, running = warm(settings, reward=1.0), random.Random(seed), []
        trial.serve(1)
        back = 0
        for i in range(600):
            arms = [(str(v), arm, share) for v, arm, share in arms_of(trial)]
            got = assign(str(trial.live), arms, f"{seed}", None, f"{i}")
            now = tried(got.chances)
            reward = float(got.adapter != "1" and coin.random() < 0.9)
            before = int(now) if now is not None else None
            running.append(outcome_of(int(got.adapter), got.arm, got.chances, "", reward, before))
            if i < 40:
                continue
            decision = trial.observe(running[i - 40])
            if decision in (Decision.ROLLBACK, Decision.ROLLBACK_BEST):
                trial.roll_back(decision is Decision.ROLLBACK_BEST, trial.tried)
                back += 1
                trial.serve(back + 1)
        assert back >= 1
        wrong += back > 1
    assert wrong <= 2


def test_the_controls_successes_alone_are_no_evidence_after_a_rollback():
    trial = warm()
    trial.serve(1)
    trial.roll_back(False, 1)
    trial.serve(2)
    before = (trial.evidence.worse.wealth, trial.evidence.worse_best.wealth)
    for _ in range(30):
        trial.observe(outcome_of(0, "control", "live=0.5 control=0.5", "", 1.0, 1))
    assert (trial.evidence.worse.wealth, trial.evidence.worse_best.wealth) == before
    assert trial.evidence.worse.n_reference == trial.evidence.worse_best.n_reference == 0


def apart(accepted: float, best: float = 0.4) -> GateTrial:
    """Version 1 was accepted without being shown to be better than the base model, which is still the best one."""
    trial = warm(TrialSettings(settle=60), reward=best)
    trial.serve(1)
    for i in range(200):
        trial.observe(outcome_of(1, "live", "live=0.9 control=0.1", "", float(i % 10 < 10 * accepted), 1))
    trial.accept()
    trial.best = 0
    return trial


def test_one_that_fails_altogether_goes_back_to_the_control_and_not_to_the_best():
    for seed in range(30):
        trial = apart(0.9)
        trial.serve(2)
        decision, _ = play(trial, 300, success({0: 0.4, 1: 0.9, 2: 0.0}), seed)
        assert decision is Decision.ROLLBACK
        trial.roll_back(False, 2)
        assert (trial.control, trial.best) == (1, 0)


def test_a_version_that_only_fails_is_not_accepted_on_what_earlier_ones_did():
    trial = warm(TrialSettings(settle=60))
    for i in range(100):
        trial.observe(outcome_of(0, "live", "", "", float(i % 10 < 9)))
    trial.serve(1)
    decision, _ = play(trial, 400, success({0: 0.9, 1: 0.9}), 3)
    assert decision is Decision.ACCEPT
    trial.serve(2)
    for _ in range(20):
        assert trial.observe(outcome_of(2, "live", "live=0.99 control=0.01", "", 0.0, 2)) is not Decision.ACCEPT
    kept = json.loads(json.dumps(trial.dump()))
    again = GateTrial(trial.settings)
    again.load(kept)
    assert again.runs.own_sum == pytest.approx(trial.runs.own_sum)
    assert not is_trusted(again)


def test_late_rewards_of_what_was_taken_back_teach_the_control_nothing():
    trial = warm()
    for i in range(40):
        trial.observe(outcome_of(0, "live", "", "", float(i % 2)))
    trial.serve(1)
    trial.roll_back(False, 1)
    before = trial.baseline.control.value
    for _ in range(32):
        trial.observe(outcome_of(1, "live", "live=0.5 control=0.5", "", 0.0, 1))
    assert trial.baseline.control.value == before


@pytest.mark.parametrize(("replayed", "share"), [(None, 0.3), (0.2, 0.1), (1.6, 0.26), (5.0, 0.5)])
def test_a_replay_moves_the_controls_share_and_no_evidence(replayed, share):
    trial = warm()
    trial.serve(1)
    before = trial.evidence.worse.wealth, trial.evidence.worse_best.wealth
    trial.replayed = replayed
    assert sum(shares_of(trial)) == pytest.approx(share)
    assert (trial.evidence.worse.wealth, trial.evidence.worse_best.wealth) == before


def test_shares_of_a_replay_cause_no_false_alarms():
    """Equal versions, whatever their replays say: 60 trials of 200 episodes, 1 % each at most."""
    wrong = 0
    for seed in range(60):
        trial = warm(TrialSettings(settle=2000))
        trial.serve(1)
        trial.replayed = (0.1, 1.6, 9.0)[seed % 3]
        wrong += play(trial, 200, success({0: 0.7, 1: 0.7}), seed)[0] in (Decision.ROLLBACK, Decision.ROLLBACK_BEST)
    assert wrong <= 3


def test_a_canary_goes_by_plan_as_the_evidence_allows():
    trial = warm(TrialSettings(canary=True, plan=[0.01, 0.1, 0.5]))
    trial.serve(1)
    shares = []
    for n in range(48):
        shares.append(shares_of(trial)[0])
        trial.observe(outcome_of(1, "candidate", "live=0.5 candidate=0.5", "", 1.0, 1))
        trial.observe(outcome_of(0, "live", "live=0.5 candidate=0.5", "", float(n % 3 > 0), 1))
    assert (shares[0], shares[15], shares[16], shares[32]) == (0.01, 0.01, 0.1, 0.5) and shares == sorted(shares)
    trial.serve(2)
    assert shares_of(trial)[0] == 0.01
    trial.replayed = 0.4  # nothing spoke against it
    assert shares_of(trial)[0] == 0.1
    trial.replayed = 1.9
    assert shares_of(trial)[0] == 0.01


def test_a_canarys_plan_goes_back_under_suspicion():
    trial = warm(TrialSettings(canary=True, plan=[0.01, 0.1, 0.5]))
    trial.serve(1)
    for n in range(34):
        trial.observe(outcome_of(1, "candidate", "live=0.5 candidate=0.5", "", float(n % 2), 1))
        trial.observe(outcome_of(0, "live", "live=0.5 candidate=0.5", "", 1.0, 1))
        if verdict_on(trial) is Decision.ROLLBACK:
            break
    assert shares_of(trial)[0] < 0.5


def test_a_broken_version_does_not_become_the_control_because_those_before_it_were_good():
    """None of them had runs enough for a verdict of its own: the evidence for "better" is theirs. By chance a few of its
    own runs may look well enough when ``settle`` is over.
    """
    accepted = 0
    for seed in range(20):
        trial = warm(TrialSettings())
        for version in range(1, 40):
            trial.serve(version)
            play(trial, 15, success({0: 0.3, version: 0.8}), seed + 100 * version)
        trial.serve(40)
        decision, _ = play(trial, 100, success({0: 0.3, 40: 0.1}), seed)
        accepted += decision is Decision.ACCEPT
    assert accepted <= 2


def test_what_serves_again_after_a_rollback_is_compared_with_the_best():
    trial = apart(0.9)
    trial.serve(2)
    trial.roll_back(False, 2)
    assert (trial.tried, trial.control, trial.best) == (1, 1, 0)
    decision, _ = play(trial, 3000, success({0: 0.6, 1: 0.0}), 1)
    assert decision is Decision.ROLLBACK_BEST


def test_what_still_runs_of_a_version_that_became_the_best_is_no_evidence_against_itself():
    trial = warm(TrialSettings())
    trial.serve(1)
    trial.accept()
    trial.move_best(1)
    for _ in range(50):
        trial.observe(outcome_of(1, "live", "live=0.9 control=0.1", "", 0.0, 1))
    assert (trial.evidence.worse_best.n_tested, trial.evidence.worse_best.growth()) == (0, 1.0)


@pytest.mark.parametrize("canary", [True, False])
@pytest.mark.parametrize("silent", [True, False])
def test_the_best_version_has_a_share_in_every_mode_and_keeps_it_where_nothing_ends(canary, silent):
    trial = apart(0.4)
    trial.settings.canary, trial.settings.share = canary, 0.5
    trial.serve(2)
    trial.silent = silent
    found = {arm: share for _, arm, share in arms_of(trial)}
    assert found["best"] >= 0.07 - 1e-9 and sum(found.values()) <= 1.0


def test_tasks_that_become_harder_for_everybody_say_nothing_of_a_version_whose_runs_do_not_end():
    """Its control is not the best version, and the control gets nearly all runs until one ends."""
    for seed in range(3):
        trial, coin = apart(0.9), random.Random(seed)
        trial.serve(2)
        trial.silent = True
        wealth = trial.evidence.worse_best.wealth
        for i in range(400):
            arms = [(str(v), arm, share) for v, arm, share in arms_of(trial)]
            got = assign(str(trial.live), arms, f"{seed}", None, f"{i}")
            run = outcome_of(int(got.adapter), got.arm, got.chances, "", float(coin.random() < 0.3), trial.tried)
            assert trial.observe(run) in (Decision.UNDECIDED, Decision.ACCEPT)
        assert trial.evidence.worse_best.wealth < 20 * wealth
        known = trial.evidence.worse_best.n_tested, trial.evidence.worse_best.n_reference
        trial.observe(outcome_of(2, "live", "live=0.1 control=0.9", "", 0.0, 2))  # of a program that gave none to best
        assert (trial.evidence.worse_best.n_tested, trial.evidence.worse_best.n_reference) == known


def test_in_canary_mode_losses_of_two_points_a_version_do_not_add_up_to_six():
    world = replace(WORSE_WORLDS["slide, canary 0.5"], episodes=9000)
    assert max(HardSimulation(world, seed).play().worst for seed in range(3)) < 0.06


def test_where_successes_are_rare_one_that_has_half_of_them_is_not_accepted_first():
    world = replace(WORSE_WORLDS["2 % → 1 %"], episodes=5000)
    assert sum(bool(HardSimulation(world, seed).play().accepted) for seed in range(4)) <= 1


def test_an_acceptance_says_which_loss_it_could_have_missed():
    """Of versions that lose 5 points, few are accepted with the word that so large a loss would have been seen."""
    wrong, said = 0, 0
    for seed in range(60):
        trial = warm(TrialSettings(settle=300, holdout=0.3, shifts=False), reward=0.7)
        trial.serve(1)
        decision, _ = play(trial, 900, success({0: 0.7, 1: 0.65}), seed)
        if decision is Decision.ACCEPT:
            report = report_of(trial, {0: "tiny", 1: "tiny@1"}, decision)
            assert report.missed is not None and f"a loss above {report.missed:.2g} would have been" in report.reason
            said += 1
            wrong += report.missed < 0.05
    assert said > 10 and wrong <= 3


@pytest.mark.parametrize("mixed", [True, False])
def test_scores_relative_to_their_group_compare_arms_only_where_groups_are_mixed(mixed):
    """Success falls from 0.8 to 0.2. A score is a run's success less its group's mean."""
    trial, coin = warm(TrialSettings(shifts=False, settle=5000), reward=0.5), random.Random(3)
    found = set()
    for group in range(200):
        if group == 10:
            trial.serve(1)
        share, one = shares_of(trial)[0], coin.random()
        arms = ["control" if (coin.random() if mixed else one) < share else "live" for _ in range(8)]
        versions = [trial.tried if arm == "live" else trial.control for arm in arms]
        won = [float(coin.random() < (0.2 if version else 0.8)) for version in versions]
        chances = f"live={1 - share} control={share}" if share else ""
        for version, arm, success_ in zip(versions, arms, won, strict=True):
            score = 0.5 + 0.5 * (success_ - sum(won) / 8)
            found.add(trial.observe(outcome_of(version, arm, chances, "", score, trial.tried if share else None)))
        if Decision.ROLLBACK in found:
            break
    assert found == ({Decision.UNDECIDED, Decision.ROLLBACK} if mixed else {Decision.UNDECIDED})


def test_a_newer_versions_own_first_reward_decides_nothing_about_the_wealth_that_comes_in():
    """Both arms fail from now on, so the arm does not matter: over its coin, no wealth may come of that."""
    trial = warm(TrialSettings(canary=True, share=0.1, shifts=False), n=60)
    trial.serve(1)
    play(trial, 150, lambda _coin, _version: 1.0)
    trial.serve(2)
    kept, after = trial.dump(), 0.0
    for tested, chance in ((True, 0.1), (False, 0.9)):
        trial.load(kept)
        worse, before = trial.evidence.worse, trial.evidence.worse.wealth + trial.evidence.worse.credit
        version, arm = (2, "candidate") if tested else (0, "live")
        trial.observe(outcome_of(version, arm, "live=0.9 candidate=0.1", "", 0.0, 2))
        after += chance * (worse.wealth + worse.credit)
    assert worse.credit < 2 * worse.rate and after <= before + worse.rate * 1.001
