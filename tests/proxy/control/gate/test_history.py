from __future__ import annotations

import random

from tests.support.trial import success, warm

from slipstream.contract import GateReading
from slipstream_proxy.assignment import assign
from slipstream_proxy.control.gate.report import (
    MAX_READINGS,
    GateHistory,
    dump_readings,
    joined,
    last_reading,
    load_readings,
    reading_of,
    report_of,
    thinned,
)
from slipstream_proxy.control.gate.rules import outcome_of
from slipstream_proxy.control.gate.shares import arms_of


def read(first: int, last: int) -> list[GateReading]:
    return [GateReading(outcome=n, at=float(n)) for n in range(first, last + 1)]


def numbers(readings: list[GateReading]) -> list[int]:
    return [r.outcome for r in readings]


def test_a_reading_says_what_the_report_says():
    trial, coin = warm(), random.Random(0)
    assert reading_of(trial, 1, 1.0) is None, "nothing is on trial"
    trial.serve(1)
    reward = success({0: 0.9, 1: 0.4})
    history: list[GateReading] = []
    for n in range(60):
        got = assign("1", [(str(v), arm, share) for v, arm, share in arms_of(trial)], "k", None, f"e{n}")
        version = int(got.adapter)
        trial.observe(outcome_of(version, got.arm, got.chances, "", reward(coin, version)))
        history.append(reading_of(trial, n, float(n)))
        assert last_reading(report_of(trial, {0: "tiny", 1: "tiny@1"}), history, 99.0) is None
    assert history[-1].evidence > history[0].evidence and history[-1].difference < 0
    assert history[-1].lower <= history[-1].difference <= history[-1].upper
    later = report_of(trial, {}).model_copy(update={"evidence": 123.0})
    assert last_reading(later, history, 99.0).at == 99.0


def test_however_many_there_are_few_are_kept_evenly_with_both_ends():
    kept: list[GateReading] = []
    for n in range(20_000):
        kept = thinned([*kept, *read(n, n)])
    assert MAX_READINGS // 4 <= len(kept) <= MAX_READINGS
    assert (kept[0].outcome, kept[-1].outcome) == (0, 19_999)
    steps = [b - a for a, b in zip(numbers(kept), numbers(kept)[1:], strict=False)]
    assert max(steps) <= 20_000 // (MAX_READINGS // 4), "the beginning is not thinned more than the end"


def test_what_is_read_again_after_a_crash_counts_once():
    assert numbers(joined(read(1, 20), read(11, 25))) == list(range(1, 26))
    assert joined(read(1, 5), []) == read(1, 5) == joined([], read(1, 5))


def test_what_comes_while_it_is_written_is_written_the_next_time():
    trial, history = warm(), GateHistory()
    trial.serve(1)
    history.note(trial, 1, 1.0)
    taken = history.take()
    history.note(trial, 2, 2.0)
    history.stored(taken)
    assert {v: numbers(r) for v, r in history.versions.items()} == {1: [2]}
    history.stored(history.take())
    assert history.versions == {}


def test_it_is_kept_as_json_and_what_cannot_be_read_is_nothing():
    assert load_readings(dump_readings(read(1, 3))) == read(1, 3)
    assert load_readings(None) == load_readings({}) == load_readings({"readings": [{"outcome": "x"}]}) == []
