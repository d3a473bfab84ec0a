"""Conformance: how episodes end with time."""

from __future__ import annotations

from tests.proxy.store.helpers import NOW, call, reward

from slipstream_proxy.store.protocol import EpisodeFilter


def test_an_idle_episode_is_done(opened):
    store = opened(idle_timeout=100)
    store.ingest([call("a"), call("b", at=NOW + 80), reward("a"), reward("b")], {})
    store.sweep(NOW + 101)
    assert [(e.id, e.state) for e in store.episodes.page(EpisodeFilter()).episodes] == [("b", "open"), ("a", "done")]
    store.sweep(NOW + 500)
    assert store.statistics.counts(NOW)["groups"] == {"ready": 1}
    store.ingest([call("a", at=NOW + 600)], {})
    found = store.episodes.get("-", "a")
    assert (found.calls, found.state, found.ended) == (2, "done", NOW + 600)
