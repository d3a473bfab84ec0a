"""Conformance: training events."""

from __future__ import annotations

from tests.support.records import NOW, mutation
from tests.support.store_writes import add_event

from slipstream.contract import Event


def test_events_in_order(store):
    first = add_event(store, Event(at=NOW, kind="step", data={"loss": 1.5, "text": "\ud800"}))
    store.ingest([mutation("event", {"kind": "adapter", "data": {}})] * 2, {})
    found = store.events.page()
    assert [(e.kind, e.data) for e in found] == [("step", {"loss": 1.5, "text": "\ud800"}), ("adapter", {})]
    assert [e.id for e in store.events.page(after=first)] == [found[1].id]
    assert [e.at for e in found] == [NOW, NOW]
    assert store.events.page(limit=1)[0].id == first < found[1].id


def test_ids_of_events_go_on_after_opening_again(opened):
    store = opened()
    first = add_event(store, Event(at=NOW, kind="step"))
    store.close()
    assert add_event(opened(), Event(at=NOW, kind="step")) > first
