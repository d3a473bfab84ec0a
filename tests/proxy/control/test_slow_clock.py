from __future__ import annotations

import itertools

import pytest

from slipstream_proxy.control.run.retention import PatientClock

DAY = 86_400.0


def test_it_is_the_wall_clock_while_that_is_right():
    clock = PatientClock(3600.0)
    for second in range(0, 8000, 50):
        assert clock.read(1e9 + second * 1.0001, second) == 1e9 + second * 1.0001


@pytest.mark.parametrize("jump", [7200.0, 3 * DAY])
def test_a_jump_ahead_counts_once_the_time_has_passed(jump):
    clock = PatientClock(3600.0)
    clock.read(1e9, 0.0)
    assert [clock.read(1e9 + jump + t, t) - 1e9 for t in (1.0, 1800.0, 3600.0)] == [1.0, 1800.0, 3600.0]
    assert clock.read(1e9 + jump + 3601.0, 3601.0) == 1e9 + jump + 3601.0
    assert clock.read(1e9 + jump + 3700.0, 3700.0) == 1e9 + jump + 3700.0


def test_a_jump_that_is_taken_back_never_counted():
    clock = PatientClock(3600.0)
    clock.read(1e9, 0.0)
    assert clock.read(1e9 + DAY, 1.0) == 1e9 + 1
    assert clock.read(1e9 + 2, 2.0) == 1e9 + 2
    assert clock.read(1e9 + DAY, 4000.0) == 1e9 + 4000, "another one begins anew"


def test_a_jump_back_counts_at_once():
    clock = PatientClock(3600.0)
    clock.read(1e9, 0.0)
    assert clock.read(1e9 - DAY, 1.0) == 1e9 - DAY
    assert clock.read(1e9 + 2, 2.0) == 1e9 + 2


def test_nothing_waits_less_than_it_was_to():
    """Whatever the jumps: what has the wall clock's time is never older, by this clock, than it has really waited."""
    for jumps in itertools.product((0.0, 90.0, 7200.0, 3 * DAY), repeat=3):
        clock, off, put = PatientClock(3600.0), 0.0, {}
        for tick in range(0, 12_000, 100):
            off = sum(jumps[: 1 + tick // 2500])
            now = clock.read(1e9 + off + tick, tick)
            expired = [begun for begun, at in put.items() if at < now - 3600.0]
            assert all(tick - begun >= 3600.0 for begun in expired), (jumps, tick)
            for begun in expired:
                del put[begun]
            put[tick] = 1e9 + off + tick
