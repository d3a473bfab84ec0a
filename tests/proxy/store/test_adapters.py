"""Conformance: adapters."""

from __future__ import annotations

from tests.support.records import NOW, call, mutation
from tests.support.store_writes import all_adapters, put_adapter

from slipstream.contract import Adapter, Event, GateReport


def adapter(n, state="candidate", **kw):
    return Adapter(
        **({"name": f"m@{n}", "model": "m", "version": n, "state": state, "created": NOW + n, "path": f"m@{n}"} | kw)
    )


def test_adapters_are_kept_and_changed(store):
    put_adapter(store, adapter(2))
    live = adapter(1, "live", accepted=True, meta={"p": 0.5}, batches=["b1"]).model_dump(mode="json")
    store.ingest([mutation("adapter", live), call("a", adapter="m@1")], {})
    put_adapter(store, adapter(2, "rolled_back", reason="worse"))
    one, two = all_adapters(store)
    assert (one.name, one.state, one.batches, one.episodes) == ("m@1", "live", ["b1"], 1)
    assert (one.accepted, one.meta) == (True, {"p": 0.5})
    assert (two.name, two.state, two.reason) == ("m@2", "rolled_back", "worse")


def test_what_an_older_gate_said_may_have_had_other_fields():
    assert adapter(1, gate={"evidence": 0.5, "of_before": 1}).gate == GateReport(evidence=0.5)


def test_changes_that_belong_together_count_if_nobody_was_first(store):
    revision, found = store.adapters.since(-1)
    assert found == []
    one = store.adapters.swap(revision, [adapter(1, "live")], [Event(at=NOW, kind="promote")])
    assert store.adapters.swap(revision, [adapter(1, "rolled_back")], [Event(at=NOW, kind="rollback")]) is None
    assert store.adapters.since(one) is None
    assert [e.kind for e in store.events.page()] == ["promote"]
    two = store.adapters.swap(one, [adapter(1, "retired"), adapter(2, "live")], [])
    assert store.adapters.since(one) == (two, all_adapters(store))
    assert [a.state for a in all_adapters(store)] == ["retired", "live"]
    put_adapter(store, adapter(3))
    assert store.adapters.swap(two, [adapter(4)], []) is None


def test_what_waited_in_a_spool_does_not_undo_what_another_proxy_decided(store):
    put_adapter(store, adapter(1, "rolled_back"))
    late = mutation("adapter", adapter(1, "live").model_dump(mode="json"))
    store.ingest([late, mutation("adapter", adapter(2, "live").model_dump(mode="json"))], {})
    assert [a.state for a in all_adapters(store)] == ["rolled_back" if store.shared else "live", "live"]


def test_why_an_adapter_stands_where_it_does_can_be_asked(store):
    put_adapter(store, adapter(1, "rolled_back", reason="worse than \0 m"))
    assert store.sql("select name, reason from adapters", 10, 5.0).rows == [["m@1", "worse than \ufffd m"]]
