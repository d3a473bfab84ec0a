from __future__ import annotations

from slipstream.client import AsyncClient
from slipstream.contract import CacheEntry
from slipstream_judge.model.cache import VoteCache, cache_key
from slipstream_judge.model.metrics import JudgeMetrics


def test_keys_depend_on_every_input_and_are_ids():
    base = {"model": "m", "rubric": "r", "runs": ["a", "b"]}
    keys = {
        cache_key(**base),
        cache_key(**base | {"model": "n"}),
        cache_key(**base | {"rubric": "s"}),
        cache_key(**base | {"runs": ["a"]}),
    }
    assert len(keys) == 4 and cache_key(**base) in keys
    CacheEntry(key=cache_key(**base), value={})


async def test_hits_and_misses_are_counted(control):
    metrics = JudgeMetrics()
    async with AsyncClient(control.url) as client:
        cache = VoteCache(client, metrics)
        assert await cache.get("k") is None
        await cache.put("k", {"x": 1})
        assert await cache.get("k") == {"x": 1}
        assert await VoteCache(client, metrics, read=False).get("k") is None
    assert metrics.hit_rate._value.get() == 0.5


async def test_a_cache_that_fails_is_no_cache():
    metrics = JudgeMetrics()
    async with AsyncClient("http://127.0.0.1:9") as client:
        cache = VoteCache(client, metrics)
        await cache.put("k", {})
        assert await cache.get("k") is None
    assert metrics.cache.labels("error")._value.get() == 1
    assert await VoteCache(None, metrics).get("k") is None
    await VoteCache(None, metrics).put("k", {})
