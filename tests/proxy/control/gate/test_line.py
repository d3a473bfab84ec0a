"""Runs are counted in the order of their assignment, and time out where no reward comes."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_proxy.control.gate import line as lines
from slipstream_proxy.control.gate.line import MAX_SILENT_RUNS, AssignmentLine, Deadline
from slipstream_proxy.control.gate.rules import Decision, TrialSettings, outcome_of
from slipstream_proxy.control.gate.shares import shares_of
from slipstream_proxy.control.gate.trial import GateTrial

CHANCES = "live=0.7 control=0.3"


def outcome(version: int, reward: float = 0.0, tried: int | None = 1, chances: str = CHANCES):
    return outcome_of(version, "live" if version else "control", chances, "", reward, tried)


def known(seconds: float = 10.0) -> Deadline:
    deadline = Deadline()
    for _ in range(20):
        deadline.see(seconds, 0, tested=False)
    return deadline


@given(st.lists(st.floats(0.1, 49.0), min_size=1, max_size=30), st.randoms())
def test_whatever_the_order_of_the_ends_they_are_counted_in_that_of_the_assignments(durations, coin):
    line = AssignmentLine(known())
    events = [(i * 1.0, 0, i) for i in range(len(durations))]
    events += [(i + d, 1, i) for i, d in enumerate(durations)]
    taken = []
    for at, kind, i in sorted(events):
        if kind:
            line.end(100 + i, f"e{i}", at, outcome(i % 2, float(i)), compared=True)
        else:
            line.assign(i, f"e{i}", at, outcome(i % 2), compared=True)
        while (run := line.take(at, -1)) is not None:
            taken.append(run)
    assert [o.reward for o in taken] == list(range(len(durations))) and all(o.finished for o in taken)
    assert [o.seconds for o in taken] == pytest.approx(durations) and not line.waiting


def test_a_run_past_the_deadline_is_not_finished_however_late_its_end_is_read():
    for early in (True, False):
        line = AssignmentLine(known(10.0))  # five times ten seconds
        line.assign(1, "a", 0.0, outcome(1), compared=True)
        line.assign(2, "b", 1.0, outcome(0), compared=True)
        line.end(3, "b", 9.0, outcome(0, 1.0), compared=True)
        assert line.take(50.0, -1) is None
        if early:
            first = line.take(50.1, -1)
        else:
            line.end(4, "a", 50.2, outcome(1, 1.0), compared=True)
            first = line.take(60.0, -1)
        assert first and (first.finished, first.seconds, first.version) == (False, None, 1)
        line.end(5, "a", 70.0, outcome(1, 1.0), compared=True)
        second = line.take(70.0, -1)
        assert second and (second.finished, second.seconds) == (True, 8.0)
        assert line.take(1e9, -1) is None, "what was counted counts no second time"


def test_the_deadline_grows_with_a_version_that_thinks_longer_and_stays_where_nothing_ends():
    slow, hangs = known(), known()
    for _ in range(20):
        slow.see(40.0, 1, tested=True)
        hangs.see(None, 1, tested=True)
    assert (slow.seconds(1), slow.seconds(2)) == (100.0, 200.0)
    assert (hangs.seconds(1), hangs.seconds(2)) == (lines.MIN_DEADLINE_S, 50.0)
    assert Deadline().seconds(1) == lines.UNKNOWN_DEADLINE_S and Deadline(7.0).seconds(1) == 7.0


def test_what_is_decided_holds_nobody_up_and_what_moved_is_no_evidence():
    line = AssignmentLine(known())
    line.assign(1, "hangs", 0.0, outcome(1), compared=True)
    line.assign(2, "moves", 0.0, outcome(2, tried=2), compared=True)
    line.assign(3, "b", 0.0, outcome(2, tried=2), compared=True)
    line.end(4, "moves", 2.0, outcome(0, 1.0, tried=2), compared=True)
    line.end(5, "b", 3.0, outcome(2, 0.5, tried=2), compared=True)
    taken = line.take(3.0, 1)
    assert taken and (taken.reward, line.cursor) == (0.5, 3)


def test_a_run_that_moved_on_to_a_later_version_counts_as_what_its_coin_made_it():
    """These are the longest ones, and only versions that are replaced have them."""
    line = AssignmentLine(known())
    line.assign(1, "a", 0.0, outcome(2, tried=2), compared=True)
    line.end(2, "a", 9.0, outcome(5, 1.0, tried=2), compared=True)
    taken = line.take(9.0, 1)
    assert taken and (taken.version, taken.reward, taken.finished) == (2, 1.0, True)


def test_a_version_that_serves_again_beside_a_better_one_is_waited_for():
    line = AssignmentLine(known())
    line.assign(1, "back", 0.0, outcome(1), compared=True)
    line.assign(2, "gone", 0.0, outcome(2, tried=2), compared=True)
    assert line.take(1.0, 2, 1) is None, "it runs"
    line.end(3, "back", 2.0, outcome(1, 1.0), compared=True)
    taken = line.take(2.0, 2, 1)
    assert taken and taken.version == 1 and line.take(2.0, 2, 1) is None and not line.waiting


def given_up(deadline: Deadline, count: int, seconds: float) -> None:
    """So many runs of the control end after the deadline."""
    for i in range(count):
        deadline.see(None, 0, tested=False)
        deadline.give_up(f"late{i}", 0.0)
    for i in range(count):
        deadline.come(f"late{i}", seconds)


def test_runs_of_the_control_that_end_late_make_the_deadline_longer():
    deadline = known(2.0)
    assert deadline.seconds(None) == lines.MIN_DEADLINE_S
    given_up(deadline, 20, 300.0)
    assert deadline.seconds(None) >= 300.0
    for seconds in (7e6, 300.0):  # one that nobody ends for months
        alone = known(2.0)
        given_up(alone, 1, seconds)
        assert alone.seconds(None) <= 10 * lines.MIN_DEADLINE_S


def test_a_few_that_end_late_or_rate_late_change_nothing():
    rated, thumbs = known(), known()
    for _ in range(400):
        rated.see(10.0, 0, tested=False)
    given_up(rated, 9, 900.0)
    assert rated.seconds(None) == 50.0, "nearly all end in time"
    for i in range(1000):
        thumbs.see(10.0 if i % 20 == 0 else None, 0, tested=False)
    given_up(thumbs, 9, 900.0)
    assert thumbs.seconds(None) == 50.0, "a run without a rating says nothing, and a long wait costs time"


def test_what_was_given_up_and_comes_after_a_restart_counts_for_the_deadline():
    before, after = known(2.0), Deadline()
    for i in range(30):
        before.see(None, 0, tested=False)
        before.give_up(f"e{i}", 0.0)
    kept = json.dumps(before.dump())
    assert "e29" not in kept, "a run that is forgotten leaves no name behind"
    after.load(json.loads(kept))
    for i in range(30):
        after.come(f"e{i}", 300.0)
    assert after.seconds(None) >= 300.0


def test_a_version_that_ends_late_moves_no_deadline():
    line = AssignmentLine(known())
    trial = GateTrial(TrialSettings())
    trial.deadline = line.deadline
    trial.serve(1)
    for i in range(40):
        line.assign(i, f"e{i}", 0.0, outcome(1), compared=True)
    while (run := line.take(60.0, -1)) is not None:
        run.eid = f"e{run.at}"
        trial.observe(run)
    for i in range(40):
        line.end(100 + i, f"e{i}", 90.0, outcome(1, 1.0), compared=True)
    assert line.deadline.usual() == 10.0


def test_a_version_of_which_nothing_ends_gets_few_runs_until_one_does():
    trial = GateTrial(TrialSettings())
    for _ in range(130):  # nearly all runs get a reward
        trial.deadline.see(1.0, 0, tested=False)
    line = AssignmentLine(known())
    trial.serve(1)
    for i in range(MAX_SILENT_RUNS - 1):
        line.assign(i, f"e{i}", 0.0, outcome(1), compared=True)
    assert not line.is_silent(1, 99.0)  # where runs are rare, these are the evidence
    line.assign(99, "e99", 30.0, outcome(1), compared=True)
    assert not line.is_silent(1, 30.0) and line.is_silent(1, 30.1) and not line.is_silent(2, 99.0)
    trial.silent = line.is_silent(1, 31.0)
    assert shares_of(trial) == (0.9, 0.0)
    late = outcome(1)
    late.finished = False
    trial.observe(late)
    assert shares_of(trial) == (0.5, 0.0)  # the first ones count: an even share decides soonest
    line.end(99, "e2", 32.0, outcome(1, 1.0), compared=True)
    assert not line.is_silent(1, 33.0)


def test_the_line_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "MAX_WAITING_RUNS", 3)
    line = AssignmentLine(known())
    for i in range(9):
        line.assign(i, f"e{i}", 0.0, outcome(1), compared=True)
        line.assign(i, f"p{i}", 0.0, outcome(1, chances=""), compared=False)
    assert (len(line.waiting), len(line.running)) == (3, 3)


def play(slower: float, quality: float, rewarded: float = 1.0, runs: int = 3000) -> tuple[GateTrial, Decision]:
    """Ten runs a second, of about thirty seconds each; the version on trial takes ``slower`` times as long."""
    coin, trial = random.Random(3), GateTrial(TrialSettings(shifts=False))
    line = AssignmentLine(trial.deadline)
    for i in range(200):
        line.assign(i, f"w{i}", 0.0, outcome(0, chances=""), compared=False)
        line.end(i, f"w{i}", coin.uniform(20.0, 40.0), outcome(0, float(coin.random() < 0.6), None, ""), compared=False)
    while (run := line.take(40.0, 0)) is not None:
        trial.observe(run)
    trial.serve(1)
    events: list[tuple[float, int, int, float]] = []
    for i in range(runs):
        begin = 100.0 + i / 10.0
        version = int(coin.random() < 0.7)
        good = float(coin.random() < (quality if version else 0.6))
        events.append((begin, 0, i, version))
        if coin.random() < rewarded:
            events.append((begin + coin.uniform(20.0, 40.0) * (slower if version else 1.0), 1, i, good + 2 * version))
    for at, kind, i, value in sorted(e for e in events if e[0] < math.inf):
        if kind:
            line.end(10_000 + i, f"e{i}", at, outcome(int(value) // 2, value % 2), compared=True)
        else:
            line.assign(1000 + i, f"e{i}", at, outcome(int(value)), compared=True)
        while (run := line.take(at, 0)) is not None:
            if (decision := trial.observe(run)) is not Decision.UNDECIDED:
                return trial, decision
    return trial, Decision.UNDECIDED


@pytest.mark.parametrize("slower", [1.2, 2.0, 4.0])
def test_a_better_version_that_thinks_longer_is_accepted(slower):
    trial, decision = play(slower, 0.8)
    assert decision is Decision.ACCEPT and not trial.runs.late


def test_a_version_that_hangs_is_taken_back_for_its_timeouts_alone():
    trial, decision = play(math.inf, 0.8)
    assert decision is Decision.ROLLBACK and trial.runs.late > 0.9 * trial.runs.since > 0


def test_where_few_runs_have_a_reward_lacking_one_says_nothing():
    trial, _ = play(math.inf, 0.8, rewarded=0.1)
    assert trial.deadline.sparse and trial.evidence.worse.wealth < 100.0


def test_a_run_that_failed_is_waited_for_no_more_and_counts_as_nothing():
    line = AssignmentLine(known(10.0))
    line.assign(1, "a", 0.0, outcome(1), compared=True)
    line.assign(2, "b", 1.0, outcome(0), compared=True)
    line.assign(3, "c", 1.0, outcome(0, chances=""), compared=False)
    line.end(4, "b", 9.0, outcome(0, 1.0), compared=True)
    assert line.take(9.0, -1) is None
    line.drop("a")
    line.drop("c")
    taken = line.take(9.0, -1)
    assert taken is not None and (taken.version, taken.reward, taken.finished) == (0, 1.0, True)
    assert line.take(9_999.0, -1) is None
    assert line.deadline.n == known(10.0).n  # nor does it teach how long runs take
    line.assign(5, "a", 20.0, outcome(1), compared=True)  # the model answered after all
    line.end(6, "a", 25.0, outcome(1, 0.5), compared=True)
    again = line.take(25.0, -1)
    assert again is not None and (again.reward, again.seconds) == (0.5, 5.0)
