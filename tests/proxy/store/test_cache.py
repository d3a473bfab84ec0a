"""Conformance: values by name."""

from __future__ import annotations

from tests.support.records import NOW, mutation
from tests.support.store_writes import put_value


def test_the_cache(store):
    assert store.cache.get("k") is None
    put_value(store, "k", {"a": 1}, NOW)
    put_value(store, "k", {"a": 2}, NOW)
    put_value(store, "k", {"a": 0}, NOW - 1)  # from the log of another proxy, which was behind
    store.ingest([mutation("cache", {"key": "l", "value": {"b": None}, "at": NOW})], {})
    assert (store.cache.get("k"), store.cache.get("l")) == ({"a": 2}, {"b": None})


def test_of_a_family_of_entries_the_newest_stay(store):
    for n in range(5):
        put_value(store, f"a_b/{n}", {"n": n}, NOW + n)
    put_value(store, "axb/1", {}, NOW - 9)
    put_value(store, "a_b/4", {"n": 4}, NOW + 4, newest=["a_b/", 2])
    assert [n for n in range(5) if store.cache.get(f"a_b/{n}")] == [3, 4]
    assert store.cache.get("axb/1") == {}
