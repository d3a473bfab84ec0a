"""Rates and concurrency of keys over several workers."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap

import pytest

from slipstream_proxy.data.access import limits as module
from slipstream_proxy.data.access.limits import Limits
from slipstream_proxy.data.wire.errors import RequestRefused
from slipstream_proxy.keys import Key

KEY = Key("0123456789ab", "a", ("inference",), concurrency=3)


def refused(limits: Limits, key: Key) -> str | None:
    try:
        limits.enter(key)
    except RequestRefused as e:
        assert e.status == 429 and e.retry_after is not None and e.retry_after > 0
        return e.message
    return None


def test_concurrency_is_counted_over_the_workers(tmp_path):
    first, second = (Limits(tmp_path / "limits", 2, n) for n in range(2))
    assert [refused(w, KEY) is None for w in (first, first, second, second, first)] == [True, True, True, False, False]
    other = dataclasses.replace(KEY, id="another")
    assert refused(second, other) is None
    first.leave(KEY)
    assert refused(second, KEY) is None and refused(first, KEY) is not None
    for limits in (first, second, second):
        limits.leave(KEY)
    second.leave(other)
    assert [refused(second, KEY) is None for _ in range(4)] == [True, True, True, False]


def test_a_rate_is_one_bucket_for_all_workers(tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)  # type: ignore[attr-defined]
    workers = [Limits(tmp_path / "limits", 4, n) for n in range(4)]
    key = dataclasses.replace(KEY, concurrency=None, rate=8.0)
    assert [refused(workers[i % 4], key) is None for i in range(9)] == [True] * 8 + [False]
    now += 0.25
    assert [refused(workers[i], key) is None for i in range(3)] == [True, True, False]
    now += 100.0
    assert sum(refused(workers[i % 4], key) is None for i in range(20)) == 8


def test_slow_rates_and_none_at_all(monkeypatch):
    now = 50.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)  # type: ignore[attr-defined]
    limits = Limits()
    slow = dataclasses.replace(KEY, concurrency=None, rate=0.1)
    assert refused(limits, slow) is None and "rate" in str(refused(limits, slow))
    now += 10.0
    assert refused(limits, slow) is None
    never = dataclasses.replace(KEY, id="never", concurrency=None, rate=0.0)
    assert refused(limits, never) is None and refused(limits, never) is not None
    free = dataclasses.replace(KEY, id="free", concurrency=None)
    assert all(refused(limits, free) is None for _ in range(100))
    limits.leave(free)


def test_a_worker_that_was_killed_leaves_nothing_behind(tmp_path):
    code = """
    import os, signal, sys
    from pathlib import Path
    from slipstream_proxy.data.access.limits import Limits
    from slipstream_proxy.keys import Key
    limits = Limits(Path(sys.argv[1]), 2, 0)
    for _ in range(3):
        limits.enter(Key("0123456789ab", "a", ("inference",), concurrency=3))
    os.kill(os.getpid(), signal.SIGKILL)
    """
    other = Limits(tmp_path / "limits", 2, 1)
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "limits")], check=False)
    assert refused(other, KEY) is not None
    again = Limits(tmp_path / "limits", 2, 0)
    assert [refused(w, KEY) is None for w in (other, again, other, again)] == [True, True, True, False]


def test_a_clock_that_began_anew_and_a_file_of_another_size(tmp_path, monkeypatch):
    (tmp_path / "limits").write_bytes(b"x" * 10)
    now = 1e6
    monkeypatch.setattr(module.time, "monotonic", lambda: now)  # type: ignore[attr-defined]
    key = dataclasses.replace(KEY, concurrency=None, rate=2.0)
    limits = Limits(tmp_path / "limits", 2, 0)
    assert [refused(limits, key) is None for _ in range(3)] == [True, True, False]
    now = 5.0  # the machine was started again
    again = Limits(tmp_path / "limits", 2, 0)
    assert [refused(again, key) is None for _ in range(3)] == [True, True, False]


def test_more_keys_than_slots(monkeypatch):
    monkeypatch.setattr(module, "LIMIT_SLOTS", 4)
    limits = Limits()
    keys = [dataclasses.replace(KEY, id=f"k{i}", concurrency=1) for i in range(9)]
    assert refused(limits, keys[0]) is None
    for key in keys[1:]:
        assert refused(limits, key) is None
        limits.leave(key)
    assert refused(limits, keys[0]) is not None, "its slot was taken while it ran"


@pytest.mark.parametrize("number", [0, 63])
def test_all_worker_numbers_have_a_place(tmp_path, number):
    limits = Limits(tmp_path / "limits", 64, number)
    assert [refused(limits, KEY) is None for _ in range(4)] == [True, True, True, False]
