"""Conformance: numbers of episodes, groups and calls."""

from __future__ import annotations

from tests.support.records import NOW, call, group, reward

from slipstream_proxy.store.read.wording import plural


def test_states_reasons_and_sources(opened):
    store = opened()
    store.ingest([*group("t1"), *group("t2", value=None), *group("t3", 1), call("open"), reward("lost")], {})
    store.ingest([call("hot", untrainable="temperature 0") for _ in range(3)], {})
    found = store.statistics.counts(NOW)
    assert found["episodes"] == {"done": 5, "open": 2}
    assert (found["calls"], found["untrainable"], found["rewards"]) == (9, {"temperature 0": 3}, {"agent": 4})
    assert (found["missing"], found["orphans"]) == ({"reward": 2}, 1)


def test_plural():
    assert [plural(n, "call", "calls") for n in (0, 1, 2)] == ["0 calls", "1 call", "2 calls"]
