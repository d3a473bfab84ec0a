"""Conformance: who is pinned to what."""

from __future__ import annotations

import threading

from tests.support.records import NOW, call, mutation
from tests.support.store_writes import pin

from slipstream_proxy.store.learning.adapters import PINS_PER_LOOKUP
from slipstream_proxy.store.values import Pin, PinAsk


def test_the_first_pin_stays(store):
    assert pin(store, "-", "a", "m", "m@1", "candidate", NOW) == Pin("m@1", "candidate")
    assert pin(store, "-", "a", "m", "m@2", "live", NOW) == Pin("m@1", "candidate")
    assert pin(store, "k", "a", "m", "m@2", "live", NOW) == Pin("m@2", "live")
    assert store.pins.open() == {"m@1": 1, "m@2": 1}
    store.ingest([call("a", adapter="m@1", done=True)], {})
    assert store.pins.open() == {"m@2": 1}
    assert store.pins.move("m@2", "m@3") == 1
    assert pin(store, "k", "a", "m", "m@9", "live", NOW) == Pin("m@3", "live")


def test_pins_that_a_worker_decided_alone_are_kept(store):
    store.ingest(
        [
            call("a", adapter="m@1", pin="local"),
            mutation("pin", {"key": "-", "episode": "b", "model": "m", "adapter": "m@2", "arm": "live"}),
        ],
        {},
    )
    assert store.pins.open() == {"m@1": 1, "m@2": 1}
    store.ingest([call("a", adapter="m@2", pin="moved", at=NOW + 1)], {})
    assert store.pins.open() == {"m@2": 2}


def test_a_pin_without_calls_is_let_go(opened):
    store = opened(idle_timeout=100)
    pin(store, "-", "a", "m", "m@1", "live", NOW)
    store.sweep(NOW + 50)
    assert store.pins.open() == {"m@1": 1}
    store.sweep(NOW + 200)
    assert store.pins.open() == {}


def test_of_many_old_pins_those_with_calls_stay(opened):
    store = opened(idle_timeout=100)
    count = PINS_PER_LOOKUP + 10
    store.pins.pin_many([PinAsk("-", f"e{n}", "m", "m@1", "live", NOW) for n in range(count)])
    there = [call(f"e{n}", adapter="m@1", at=NOW + 150) for n in (0, PINS_PER_LOOKUP, count - 1)]
    store.ingest(there, {})
    store.sweep(NOW + 200)
    assert store.pins.open() == {"m@1": len(there)}


def test_many_ask_for_one_pin(store):
    got = []

    def ask(n):
        got.append(pin(store, "-", "a", "m", f"m@{n}", "live", NOW))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(got) == 8
    assert len({p.adapter for p in got}) == 1


def test_pins_are_counted_again_only_where_something_was_written(store, monkeypatch):
    counted, count = [], store.pins.count
    monkeypatch.setattr(store.pins, "count", lambda tx: counted.append(1) or count(tx))
    for n in range(3):
        pin(store, "-", f"e{n}", "m", "m@1", "live", NOW)
        assert [store.pins.open() for _ in range(4)] == [{"m@1": n + 1}] * 4
    assert len(counted) == (12 if store.shared else 3)
