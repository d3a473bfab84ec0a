"""Conformance: values by name."""

from __future__ import annotations

from tests.support.records import NOW, mutation


def test_the_cache(store):
    assert store.cache.get("k") is None
    store.cache.put("k", {"a": 1}, NOW)
    store.cache.put("k", {"a": 2}, NOW)
    store.ingest([mutation("cache", {"key": "l", "value": {"b": None}, "at": NOW})], {})
    assert (store.cache.get("k"), store.cache.get("l")) == ({"a": 2}, {"b": None})


def test_of_a_family_of_entries_the_newest_stay(store):
    for n in range(5):
        store.cache.put(f"a_b/{n}", {"n": n}, NOW + n)
    store.cache.put("axb/1", {}, NOW - 9)
    assert store.cache.trim("a_b/", 2) == 3
    assert [n for n in range(5) if store.cache.get(f"a_b/{n}")] == [3, 4]
    assert store.cache.get("axb/1") == {} and store.cache.trim("a_b/", 2) == 0
