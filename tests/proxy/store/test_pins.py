"""Conformance: who is pinned to what."""

from __future__ import annotations

import threading

from tests.support.records import NOW, call, mutation

from slipstream_proxy.store.values import Pin


def test_the_first_pin_stays(store):
    assert store.pins.pin("-", "a", "m", "m@1", "candidate", NOW) == Pin("m@1", "candidate")
    assert store.pins.pin("-", "a", "m", "m@2", "live", NOW) == Pin("m@1", "candidate")
    assert store.pins.pin("k", "a", "m", "m@2", "live", NOW) == Pin("m@2", "live")
    assert store.pins.open() == {"m@1": 1, "m@2": 1}
    store.ingest([call("a", adapter="m@1", done=True)], {})
    assert store.pins.open() == {"m@2": 1}
    assert store.pins.move("m@2", "m@3") == 1
    assert store.pins.pin("k", "a", "m", "m@9", "live", NOW) == Pin("m@3", "live")


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
    store.pins.pin("-", "a", "m", "m@1", "live", NOW)
    store.sweep(NOW + 50)
    assert store.pins.open() == {"m@1": 1}
    store.sweep(NOW + 200)
    assert store.pins.open() == {}


def test_many_ask_for_one_pin(store):
    got = []

    def ask(n):
        got.append(store.pins.pin("-", "a", "m", f"m@{n}", "live", NOW))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(got) == 8
    assert len({p.adapter for p in got}) == 1
