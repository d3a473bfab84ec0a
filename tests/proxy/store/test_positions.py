"""Conformance: how far the spool is ingested."""

from __future__ import annotations

from tests.support.records import at, call

from slipstream_proxy.store.values import Position


def test_a_position_moves_with_what_was_ingested(opened):
    store = opened()
    store.ingest([call("a")], at(0, 10))
    store.ingest([call("b")], at(0, 20) | at(3, 4, writer="data1"))
    expected = {"data0": Position(0, 20), "data1": Position(3, 4)}
    assert store.positions() == expected
    store.close()
    assert opened().positions() == expected


def test_a_batch_that_fails_moves_nothing(store):
    store.ingest([call("a")], at(0, 10))
    broken = call("b")
    broken.head.at = "no time"  # type: ignore[assignment]
    try:
        store.ingest([broken], at(0, 20))
    except Exception:
        assert store.positions() == at(0, 10)
    else:
        raise AssertionError("it was ingested")
    store.ingest([call("c")], at(0, 30))
    assert store.positions() == at(0, 30)


def test_each_proxy_of_a_database_has_its_own(opened):
    first = opened(instance="one")
    if not first.shared:
        return  # a DuckDB file has one proxy
    second = opened(instance="two")
    first.ingest([call("a")], at(0, 10))
    assert second.positions() == {}
    second.ingest([call("b")], at(5, 1))
    assert (first.positions(), second.positions()) == (at(0, 10), at(5, 1))
