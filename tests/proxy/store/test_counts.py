"""Conformance: why there was no step yet."""

from __future__ import annotations

from tests.proxy.store.helpers import NOW, call, group, reward

from slipstream_proxy.store.counts import plural


def test_an_empty_store_says_what_is_needed(store):
    assert store.statistics.counts(NOW)["waiting"] == ["0 groups complete and scored, 8 needed for a step"]


def test_reasons_with_their_counts(opened):
    store = opened(min_groups=2)
    store.ingest([*group("t1"), *group("t2", value=None), *group("t3", 1), call("open"), reward("lost")], {})
    store.ingest([call("hot", untrainable="temperature 0") for _ in range(3)], {})
    found = store.statistics.counts(NOW)
    assert found["waiting"] == [
        "1 group complete and scored, 2 needed for a step",
        "1 complete group waits for rewards",
        "2 episodes have no reward named 'reward'",
        "1 group is forming with 1 episode: 2 episodes of one task make a group",
        "2 episodes are still open",
        "1 unknown episode has rewards but no calls",
        "3 calls can't be trained on: temperature 0 (3)",
    ]
    assert found["episodes"] == {"done": 5, "open": 2}
    assert (found["calls"], found["untrainable"], found["rewards"]) == (9, {"temperature 0": 3}, {"agent": 4})


def test_enough(opened):
    store = opened(min_groups=1)
    store.ingest(group("t1"), {})
    assert store.statistics.counts(NOW)["waiting"] == ["1 group is ready: a trainer may lease them"]


def test_plural():
    assert [plural(n, "call", "calls") for n in (0, 1, 2)] == ["0 calls", "1 call", "2 calls"]
