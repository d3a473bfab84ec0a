"""Conformance: rewards in the order in which they became final."""

from __future__ import annotations

import pytest
from tests.support.records import NOW, call, done, group, reward
from tests.support.store_writes import pin

from slipstream_proxy.store import outcomes

CHANCES = "live=0.9 control=0.1"


def log(store, after: int = 0):
    return [(o.adapter, o.arm, o.chances, o.task, o.reward) for o in store.outcomes.since("m", after)]


def test_an_episode_is_written_down_when_it_is_done_and_rewarded(store):
    store.ingest([call("a", adapter="m@1", arm="control", chances=CHANCES), call("b", adapter="m@2")], {})
    store.ingest([reward("a", 0.5), done("b")], {})
    assert log(store) == []
    store.ingest([reward("b", 1.0)], {})
    store.ingest([done("a")], {})
    assert log(store) == [("m@2", "live", "", "-/t1", 1.0), ("m@1", "control", CHANCES, "-/t1", 0.5)]


def test_once_as_it_was_first_known(store):
    store.ingest([call("a", done=True), reward("a", 0.5)], {})
    store.ingest([reward("a", 0.9)], {})
    store.ingest([done("a")], {})
    assert [row[-1] for row in log(store)] == [0.5]
    assert store.episodes.get("-", "a").reward == 0.9


def test_only_training_episodes_and_only_what_comes_after_the_cursor(store):
    store.ingest([*group("t1", n=3), *group("held", split="eval")], {})
    found = store.outcomes.since("m", 0)
    assert [o.reward for o in found] == [1.0, 2.0, 3.0]
    assert [o.reward for o in store.outcomes.since("m", found[0].seq)] == [2.0, 3.0]
    assert [o.reward for o in store.outcomes.since("m", 0, limit=1)] == [1.0]
    assert store.outcomes.since("other", 0) == []
    assert store.outcomes.last("m", 1) == found[1].seq and store.outcomes.last("m", 99) == 0


def test_an_idle_episode_is_final_when_the_sweep_ends_it(store):
    store.ingest([call("a"), reward("a", 0.5)], {})
    store.sweep(NOW + 100_000)
    assert [row[-1] for row in log(store)] == [0.5]


def test_a_forgotten_episode_is_forgotten_here_too(store):
    store.ingest([*group("t1", n=2)], {})
    assert store.forget([("-", "t1-0")], NOW).names
    assert [row[-1] for row in log(store)] == [2.0]


def test_what_an_episode_was_assigned_with_stays_with_its_pin(store):
    first = pin(store, "-", "a", "m", "m@1", "control", NOW, CHANCES)
    again = pin(store, "-", "a", "m", "m@2", "live", NOW, "live=0.5 control=0.5")
    assert first == again and again.chances == CHANCES


def test_what_the_gate_has_read_goes_and_what_it_has_not_stays(store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outcomes, "LOOK_BACK", 4)
    for i in range(10):
        store.ingest([call(f"e{i}", done=True), reward(f"e{i}", float(i))], {})
    store.ingest([call("other", trained="n", done=True), reward("other", 0.0)], {})
    every = store.outcomes.since("m", 0)
    assert store.outcomes.prune("m", every[4].seq) == 5
    assert [o.reward for o in store.outcomes.since("m", 0)] == [5.0, 6.0, 7.0, 8.0, 9.0]
    assert store.outcomes.prune("m", every[-1].seq) > 0
    left = [o.reward for o in store.outcomes.since("m", 0)]
    assert left[-1] == 9.0 and 1 <= len(left) <= 4  # they still tell an episode that ends twice
    store.ingest([done("e9")], {})
    assert [o.reward for o in store.outcomes.since("m", 0)] == left
    assert len(store.outcomes.since("n", 0)) == 1
