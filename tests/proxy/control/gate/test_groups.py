from __future__ import annotations

import json
import random

import pytest
from benchmarks.gate.simulation import Simulation, World
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.trial import play, warm

from slipstream.shared.error_budget import GROUPS_STAKE
from slipstream_proxy.assignment import LIVE_ARM, assign
from slipstream_proxy.control.gate.detector import NONE_MISSING, SeenRun
from slipstream_proxy.control.gate.groups import (
    BEST_RUNS,
    MAX_GROUPS,
    MIN_GROUP_RUNS,
    REMEMBERED_RUNS,
    SHOWN_RUNS,
    GroupWatch,
)
from slipstream_proxy.control.gate.report import report_of, verdict_reason
from slipstream_proxy.control.gate.rules import Decision, TrialSettings, outcome_of
from slipstream_proxy.control.gate.shares import arms_of
from slipstream_proxy.control.gate.suspicion import LACKING_SETTLES, is_calm, is_trusted, lacks_groups
from slipstream_proxy.control.gate.trial import GateTrial
from slipstream_proxy.control.gate.verdict import beats_best, verdict_on, worst_group

NAMES = {0: "tiny", 1: "tiny@1"}
BAD, GOOD = "tag.customer=acme", "tag.customer=others"


def one_customer_of_five(by_group: bool = True) -> tuple[GateTrial, Decision]:
    """Every reward of one customer falls from 0.8 to 0, and the others' rise from 0.8 to 1.0: net 0."""
    trial, coin = GateTrial(TrialSettings(by_group=by_group, shifts=False)), random.Random(0)
    for i in range(400):
        run = outcome_of(0, LIVE_ARM, "", "", float(coin.random() < 0.8))
        run.groups = (BAD if i % 5 == 0 else GOOD,)
        trial.observe(run)
    trial.serve(1)
    for i in range(3000):
        got = assign(str(trial.live), [(str(v), a, s) for v, a, s in arms_of(trial)], "k", None, f"e{i}")
        group = BAD if coin.random() < 0.2 else GOOD
        reward = float(group == GOOD) if got.adapter == "1" else float(coin.random() < 0.8)
        run = outcome_of(int(got.adapter), got.arm, got.chances, "", reward, trial.tried)
        run.groups = (group,)
        if (decision := trial.observe(run)) is not Decision.UNDECIDED:
            return trial, decision
    return trial, Decision.UNDECIDED


def test_what_fails_for_one_customer_of_five_is_taken_back_and_the_reason_names_it():
    trial, decision = one_customer_of_five()
    assert decision is Decision.ROLLBACK
    assert f"worse than tiny for {BAD}: -0." in verdict_reason(trial, NAMES, decision)
    report = report_of(trial, NAMES, decision)
    assert report.groups[0].name == BAD and report.groups[0].trial_episodes < 200
    assert report.evidence >= report.threshold > report.groups[-1].evidence


def test_where_a_group_takes_nothing_back_the_verdict_says_what_it_is_worse_for():
    trial, decision = one_customer_of_five(by_group=False)
    assert decision is Decision.ACCEPT
    assert f"but it is worse for {BAD}: -0.8" in verdict_reason(trial, NAMES, decision)


def test_a_loss_below_the_margin_takes_nothing_back():
    """Rewards of one group fall by 0.05 of the range without any chance, all others' rise."""
    trial = GateTrial(TrialSettings(shifts=False, reward_range=(0.0, 1.0)))
    for i in range(400):
        run = outcome_of(0, LIVE_ARM, "", "", 0.5 + 0.5 * (i % 2))
        run.groups = (BAD if i % 3 else GOOD,)
        trial.observe(run)
    trial.serve(1)
    for i in range(2000):
        got = assign(str(trial.live), [(str(v), a, s) for v, a, s in arms_of(trial)], "k", None, f"e{i}")
        loss = (0.025 if i % 3 else -0.1) if got.adapter == "1" else 0.0
        run = outcome_of(int(got.adapter), got.arm, got.chances, "", 0.75 - loss, trial.tried)
        run.groups = (BAD if i % 3 else GOOD,)
        trial.observe(run)
    assert trial.evidence.groups.suspicion(best=False) < 1.0


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), names=st.integers(1, 200), starts=st.integers(1, 50))
def test_all_groups_together_put_in_no_more_than_their_part_of_the_error_level(seed, names, starts):
    """Whatever groups come and go: what was put in is what the promise allows for so many runs."""
    watch, coin, put = GroupWatch(), random.Random(seed), 0.0
    for i in range(3000):
        name = f"tag.x={min(coin.randrange(names), coin.randrange(names)) + (names if i > 2000 else 0)}"
        watch.count((name,))
        watch.see((name,), SeenRun(0.5, 0.5, coin.random() < 0.9, 0.9, False, NONE_MISSING), best=False)
        if i % starts == 0:
            watch.start()
        put = max(put, sum(slot.detectors[0].put + slot.detectors[0].credit for slot in watch.slots.values()))
        assert len(watch.slots) <= MAX_GROUPS
    assert put <= GROUPS_STAKE.after(3000) + 1e-12


def test_only_groups_with_enough_of_the_traffic_are_looked_at_and_names_of_single_runs_are_forgotten():
    watch = GroupWatch()
    for i in range(10 * REMEMBERED_RUNS):
        watch.count(("tag.env=prod", f"tag.run={i}", f"task={i % 100}"))
    assert list(watch.slots) == ["tag.env=prod"]
    assert len(watch.counts) <= 2 * REMEMBERED_RUNS


def test_a_group_that_is_gone_makes_room():
    watch = GroupWatch()
    for day in range(8):
        for i in range(2 * REMEMBERED_RUNS):
            watch.count((f"tag.day={day}-{i % 10}",))
    assert {f"tag.day=7-{i}" for i in range(10)} <= set(watch.slots)


def test_what_it_keeps_goes_on_where_it_was():
    trial, _ = one_customer_of_five(by_group=False)
    again = GateTrial(trial.settings)
    again.load(json.loads(json.dumps(trial.dump())))
    assert again.evidence.groups.dump() == trial.evidence.groups.dump()
    assert again.evidence.groups.suspicion(best=True) == trial.evidence.groups.suspicion(best=True) > 2.0


def test_what_a_program_kept_that_looked_at_no_groups_can_be_read():
    kept = warm().dump()
    del kept["groups"]
    again = GateTrial(TrialSettings())
    again.load(json.loads(json.dumps(kept)))
    assert not again.evidence.groups.slots
    with pytest.raises(TypeError):
        again.load(json.loads(json.dumps({**kept, "groups": {**GroupWatch().dump(), "slots": [["a", 1]]}})))


def test_too_few_runs_say_nothing_of_a_group():
    watch = GroupWatch()
    for _ in range(MIN_GROUP_RUNS - 1):
        watch.count((BAD,))
    assert not watch.slots and watch.worst(best=False) is None and watch.suspicion(best=True) == 1.0


def test_without_groups_nothing_is_looked_at():
    trial = warm()
    trial.serve(1)
    play(trial, 60, lambda *_: 1.0)
    assert not trial.evidence.groups.slots and report_of(trial, NAMES).groups == []


def test_a_group_that_a_person_gave_the_version_to_takes_nothing_back_alone():
    trial, _ = one_customer_of_five(by_group=False)
    trial.settings.by_group = trial.settings.group_alone = True
    assert verdict_on(trial) is Decision.ROLLBACK_GROUP and trial.evidence.groups.is_short(best=False)
    trial.evidence.groups.given = frozenset({BAD})
    assert verdict_on(trial) is Decision.ACCEPT and worst_group(trial) is None
    trial.keep_from(frozenset(), frozenset({BAD}))
    again = GateTrial(trial.settings)
    again.load(json.loads(json.dumps(trial.dump())))
    again.keep_from(frozenset(), frozenset({BAD}))
    assert again.evidence.groups.given == {BAD} and again.evidence.groups.worst(best=False) is not None


def test_what_gains_much_and_fails_for_one_of_ten_is_taken_back_even_after_it_was_accepted():
    """Success rises from 0.5 to 0.88 for nine of ten, so it is soon shown to be better on the whole."""
    world = World(0.5, (0.8,), solved, collapsed=0.05, tags=10, tasks="never", warm=500, episodes=6000, every=6000)
    run = Simulation(world, 1).play()
    assert run.accepted == [1] and run.rollbacks == 1 and run.bad_tag < 400


def solved(coin: random.Random, _: int, quality: float) -> float:
    return float(coin.random() < quality)


def test_the_best_version_stays_until_each_group_that_comes_was_compared_with_it():
    trial, _ = one_customer_of_five(by_group=False)
    trial.settings.by_group = True
    trial.evidence.groups.given = frozenset({BAD})
    trial.evidence.better_best.wealth = 1e6
    assert beats_best(trial) and trial.evidence.groups.is_heard(best=True)
    trial.evidence.groups.slots[GOOD].detectors[1].n_tested = BEST_RUNS - 1
    assert not beats_best(trial)
    trial.evidence.groups.counts[GOOD] = 1.0  # it comes no more
    assert beats_best(trial)


def falls(share: float, n: int) -> tuple[GateTrial, Decision]:
    """Success of so large a part of the runs falls from 0.9 to 0.1, and the others' rises as much."""
    trial, coin = GateTrial(TrialSettings(shifts=False)), random.Random(1)
    for i in range(600 + n):
        if i == 600:
            trial.serve(1)
        arms = [(str(v), a, s) for v, a, s in arms_of(trial)] if i >= 600 else []
        got = assign(str(trial.live), arms, "k", None, f"e{i}")
        bad = coin.random() < share
        quality = 0.9 if got.adapter == "0" else 0.1 if bad else 0.9 + 0.8 * share / (1.0 - share)
        run = outcome_of(int(got.adapter), got.arm, got.chances, "", float(coin.random() < quality), trial.tried)
        run.groups = (BAD if bad else GOOD,)
        if (decision := trial.observe(run)) is not Decision.UNDECIDED:
            return trial, decision
    return trial, Decision.UNDECIDED


def test_what_fails_for_three_of_a_hundred_is_not_accepted_and_says_which_then_it_is_taken_back():
    trial, decision = falls(0.03, 900)
    assert decision is Decision.UNDECIDED and trial.runs.since >= trial.settings.settle
    assert f"rewards for {BAD}" in report_of(trial, NAMES).reason
    trial, decision = falls(0.03, 4000)
    assert decision is Decision.ROLLBACK and f"for {BAD}: -0." in verdict_reason(trial, NAMES, decision)


def test_the_more_groups_are_looked_at_the_larger_a_loss_is_that_an_acceptance_waits_for():
    """One group's rewards are lower by so much in each watch; the others' are as before."""
    for loss, groups, doubted in ((0.25, 2, True), (0.25, 30, False), (0.6, 30, True)):
        watch = GroupWatch()
        for i in range(40 * groups):
            watch.count((f"tag.x={i % groups}",))
            watch.learn((f"tag.x={i % groups}",), 0.7, tested=False)
        for i in range(25 * groups):
            x = 0.7 - loss * (i % groups == 0)
            watch.see((f"tag.x={i % groups}",), SeenRun(x, 0.7, True, 0.9, False, NONE_MISSING), best=False)
        found = watch.doubted()
        assert (found is not None and found[0] == "tag.x=0") == doubted == (found is not None)


def test_a_larger_group_takes_the_place_of_one_of_less_than_half_its_traffic():
    watch = GroupWatch()
    half = MAX_GROUPS // 2
    for i in range(2 * 21 * half):  # one half comes after the other: each has its share of the runs since it came
        watch.count((f"tag.small={i // (21 * half)}-{i % half}",))
    for _ in range(70):
        watch.count((BAD,))
    assert BAD in watch.slots and len(watch.slots) == MAX_GROUPS


def test_an_acceptance_waits_for_the_first_runs_of_a_rare_group_but_only_for_a_while():
    """One group has come to the base model alone so far."""
    trial = GateTrial(TrialSettings(shifts=False))
    for i in range(100):
        observe(trial, 0, i, (BAD,))
    trial.serve(1)
    for i in range(600):
        observe(trial, int(i % 10 > 0), i, (GOOD,))
    assert lacks_groups(trial) and is_calm(trial) and not is_trusted(trial)
    assert f"fewer than {SHOWN_RUNS} of its runs" in report_of(trial, NAMES).reason
    for i in range(SHOWN_RUNS):
        observe(trial, 1, i, (BAD,))
    assert not lacks_groups(trial)
    trial.evidence.groups.slots[BAD].detectors[0].n_tested = 0
    trial.runs.since = LACKING_SETTLES * trial.settings.settle
    assert not lacks_groups(trial)


def observe(trial: GateTrial, version: int, i: int, groups: tuple[str, ...]) -> None:
    chances = "live=0.9 control=0.1" if trial.on_trial else ""
    run = outcome_of(version, "live" if version or not trial.on_trial else "control", chances, "", float(i // 10 % 2))
    run.groups = groups
    trial.observe(run)
