"""Conformance: a store as a whole."""

from __future__ import annotations

from tests.support.records import at, call, rules

from slipstream_proxy.store import open_store


def test_a_snapshot_keeps_everything(opened):
    first = opened()
    assert not first.db.rebuilt
    first.ingest([call("a")], at(0, 7))
    first.snapshot()
    first.snapshot()
    first.close()
    second = opened()
    assert second.positions() == at(0, 7)
    assert second.episodes.get("-", "a").calls == 1


def test_a_path_with_odd_letters(tmp_path):
    folder = tmp_path / "it's a folder"
    store = open_store(f"duckdb:///{folder}/a b.duckdb", rules())
    store.ingest([call("a")], {})
    store.forget([("-", "a")], 0.0)
    store.rewrite()
    store.close()
    assert [p.name for p in folder.iterdir()] == ["a b.duckdb"]
