"""Conformance: adapters, events, the judge's cache."""

from __future__ import annotations

from tests.proxy.store.helpers import NOW, call, mutation

from slipstream.contract import Adapter, Event


def adapter(n, state="candidate", **kw):
    return Adapter(
        **({"name": f"m@{n}", "model": "m", "version": n, "state": state, "created": NOW + n, "path": f"m@{n}"} | kw)
    )


def test_adapters_are_kept_and_changed(store):
    store.put_adapter(adapter(2))
    store.ingest(
        [
            mutation(
                "adapter",
                adapter(1, "live", numbers={"accepted": True, "p": 0.5}, batches=["b1"]).model_dump(mode="json"),
            ),
            call("a", adapter="m@1"),
        ],
        {},
    )
    store.put_adapter(adapter(2, "rolled_back", reason="worse"))
    one, two = store.adapters()
    assert (one.name, one.state, one.accepted, one.meta, one.batches, one.episodes) == (
        "m@1",
        "live",
        True,
        {"p": 0.5},
        ["b1"],
        1,
    )
    assert (two.name, two.state, two.reason) == ("m@2", "rolled_back", "worse")


def test_events_in_order(store):
    first = store.add_event(Event(at=NOW, kind="step", data={"loss": 1.5, "text": "\ud800"}))
    store.ingest([mutation("event", {"kind": "adapter", "data": {}})] * 2, {})
    found = store.events()
    assert [(e.kind, e.data) for e in found] == [("step", {"loss": 1.5, "text": "\ud800"}), ("adapter", {})]
    assert [e.id for e in store.events(after=first)] == [found[1].id]
    assert [e.at for e in found] == [NOW, NOW]
    assert store.events(limit=1)[0].id == first < found[1].id


def test_the_cache(store):
    assert store.cache_get("k") is None
    store.cache_put("k", {"a": 1}, NOW)
    store.cache_put("k", {"a": 2}, NOW)
    store.ingest([mutation("cache", {"key": "l", "value": {"b": None}, "at": NOW})], {})
    assert (store.cache_get("k"), store.cache_get("l")) == ({"a": 2}, {"b": None})


def test_ids_of_events_go_on_after_opening_again(opened):
    store = opened()
    first = store.add_event(Event(at=NOW, kind="step"))
    store.close()
    assert opened().add_event(Event(at=NOW, kind="step")) > first


def test_changes_that_belong_together_count_if_nobody_was_first(store):
    revision, found = store.adapters_since(-1)
    assert found == []
    one = store.swap_adapters(revision, [adapter(1, "live")], [Event(at=NOW, kind="promote")])
    assert store.swap_adapters(revision, [adapter(1, "rolled_back")], [Event(at=NOW, kind="rollback")]) is None
    assert store.adapters_since(one) is None
    assert [e.kind for e in store.events()] == ["promote"]
    two = store.swap_adapters(one, [adapter(1, "retired"), adapter(2, "live")], [])
    assert store.adapters_since(one) == (two, store.adapters())
    assert [a.state for a in store.adapters()] == ["retired", "live"]
    store.put_adapter(adapter(3))
    assert store.swap_adapters(two, [adapter(4)], []) is None


def test_what_waited_in_a_spool_does_not_undo_what_another_proxy_decided(store):
    store.put_adapter(adapter(1, "rolled_back"))
    late = mutation("adapter", adapter(1, "live").model_dump(mode="json"))
    store.ingest([late, mutation("adapter", adapter(2, "live").model_dump(mode="json"))], {})
    assert [a.state for a in store.adapters()] == ["rolled_back" if store.shared else "live", "live"]


def test_why_an_adapter_stands_where_it_does_can_be_asked(store):
    store.put_adapter(adapter(1, "rolled_back", reason="worse than \0 m"))
    assert store.sql("select name, reason from adapters", 10, 5.0).rows == [["m@1", "worse than \ufffd m"]]
