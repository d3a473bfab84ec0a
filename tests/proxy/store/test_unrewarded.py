"""A run that stopped and never got a reward does not hold up its group for ever."""

from __future__ import annotations

import pytest
from tests.support.records import NOW, call, done, group, reward, want

IDLE_S = 900.0
"""``episodes.idle_timeout``: nothing is known of the agent's pauses."""


@pytest.fixture
def four(opened):
    """A store with a group of four, of which ``stopped`` has no reward. ``known``: runs with a reward before, and its delay."""

    def make(known: int = 8, delay: float = 1.0, rewarded: int = 3, **rules):
        store = opened(group_size=4, **rules)
        for i in range(known):
            store.ingest([call(f"known{i}", task=f"k{i}", at=NOW, done=True), reward(f"known{i}", at=NOW + delay)], {})
        for i in range(rewarded):
            store.ingest([call(f"run{i}", task="t", at=NOW, done=True), reward(f"run{i}", i, at=NOW + 1)], {})
        store.ingest([call(f"stopped{i}", task="t", at=NOW) for i in range(4 - rewarded)], {})
        store.sweep(NOW + IDLE_S + 2)
        assert store.episodes.get("-", "stopped0").state == "done"
        assert store.statistics.counts(NOW)["groups"]["waiting_reward"] == 1
        return store

    return make


def ready(store) -> int:
    return int(store.statistics.counts(NOW)["groups"].get("ready", 0))


def test_the_others_train_once_its_reward_is_overdue_and_status_says_so(four):
    store = four()
    store.sweep(NOW + 2 * IDLE_S - 40)
    assert ready(store) == 0, "it has as long again to go on"
    store.sweep(NOW + 2 * IDLE_S + 40)
    assert ready(store) == 1
    got = store.batches.lease(want(), {}, 0, NOW + 2 * IDLE_S + 41)
    assert {r["episode"] for r in got.table.to_pylist()} == {"run0", "run1", "run2"}
    assert store.episodes.get("-", "stopped0").group is None
    assert store.statistics.funnel("judge", NOW + 2 * IDLE_S + 41).unrewarded == 1


def test_a_reward_that_comes_after_all_brings_it_into_the_group_that_forms_then(four):
    store = four()
    store.sweep(NOW + 2 * IDLE_S + 40)
    store.ingest([reward("stopped0", 0.5, at=NOW + 3 * IDLE_S, done=False)], {})
    late = store.episodes.get("-", "stopped0")
    assert late.reward == 0.5 and late.group is not None and late.group != store.episodes.get("-", "run0").group
    assert store.statistics.funnel("judge", NOW + 3 * IDLE_S).forming.episodes >= 1
    store.ingest([reward("stopped0", 0.7, at=NOW + 3 * IDLE_S + 1)], {})
    assert store.episodes.get("-", "stopped0").group == late.group, "once"


@pytest.mark.parametrize(
    ("why", "given"),
    [
        ("a judge scores complete groups", {"weights": {"judge": 1.0}}),
        ("one reward alone compares nothing", {"rewarded": 1}),
        ("rewards usually come so late", {"delay": 1500.0}),
        ("nothing is known of how late they come", {"known": 2}),
    ],
)
def test_its_group_waits(four, why, given):
    store = four(**given)
    store.sweep(NOW + 3 * IDLE_S)
    assert ready(store) == 0 and store.episodes.get("-", "stopped0").group is not None, why


def test_what_is_marked_as_done_has_its_reward_still_to_come(opened):
    store = opened(group_size=2)
    store.ingest(group("known", 8), {})
    store.ingest([call("a", task="t", at=NOW), done("a"), call("b", task="t", at=NOW, done=True), reward("b")], {})
    store.sweep(NOW + 10 * IDLE_S)
    assert store.episodes.get("-", "a").group is not None


def test_it_leaves_after_the_age_of_a_group_however_late_rewards_come(four):
    store = four(delay=1500.0)
    store.sweep(NOW + 3600.0 + 40)
    assert store.episodes.get("-", "stopped0").group is None
