"""What is remembered of recent episodes is bounded."""

from __future__ import annotations

import numpy as np

from slipstream_proxy.store.conversation.calls import EpisodeCalls, KnownCalls
from slipstream_proxy.store.conversation.fingerprint import MAX_BASE_CALLS, Known, TokenPrint, chain


def call(name: str) -> Known:
    return Known(name, chain([]), TokenPrint.of(np.zeros(640, np.int32)), b"")


def test_memory_is_bounded():
    known = KnownCalls(memory=20_000, disk=0)
    for i in range(100):
        calls = EpisodeCalls()
        calls.add("day", call("c"))
        known.put(f"e{i}", calls)
    assert known.get("e99") is not None
    assert known.get("e0") is None
    kept = sum(known.get(f"e{i}") is not None for i in range(100))
    assert 2 <= kept <= 10
    known.clear()
    assert known.get("e99") is None


def test_the_least_recently_used_goes_first():
    known = KnownCalls(memory=8_000, disk=0)
    for name in ("a", "b"):
        calls = EpisodeCalls()
        calls.add("day", call("c"))
        known.put(name, calls)
    known.get("a")
    for name in ("c", "d"):
        calls = EpisodeCalls()
        calls.add("day", call("c"))
        known.put(name, calls)
        known.get("a")
    assert (known.get("a") is None, known.get("b") is None) == (False, True)


def test_what_leaves_the_memory_is_read_back_and_not_made_again():
    known = KnownCalls(memory=8_000)
    for i in range(100):
        calls = EpisodeCalls(count=i)
        calls.add("day", call(f"c{i}"))
        known.put(f"e{i}", calls)
    for i in (0, 50, 99):
        found = known.get(f"e{i}")
        assert (found.count, found.days["day"][0].id) == (i, f"c{i}")
        assert list(found.days["day"][0].tokens.blocks) == list(call("").tokens.blocks)
    known.clear()
    assert known.get("e7") is None


def test_the_last_calls_of_a_day_may_be_bases():
    calls = EpisodeCalls()
    for i in range(20):
        calls.add("day", call(str(i)))
    assert [k.id for k in calls.days["day"]] == [str(i) for i in range(20 - MAX_BASE_CALLS, 20)]
    assert calls.days["another day"] == []
