"""Conformance: the judge's cache."""

from __future__ import annotations

from tests.support.records import NOW, mutation


def test_the_cache(store):
    assert store.cache.get("k") is None
    store.cache.put("k", {"a": 1}, NOW)
    store.cache.put("k", {"a": 2}, NOW)
    store.ingest([mutation("cache", {"key": "l", "value": {"b": None}, "at": NOW})], {})
    assert (store.cache.get("k"), store.cache.get("l")) == ({"a": 2}, {"b": None})
