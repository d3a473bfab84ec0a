"""A store that SQL has filled is as one that was filled by records: counters, groups, calls of each day."""

from __future__ import annotations

import time

import pytest
from benchmarks.store import filling

from slipstream.contract import GroupLeaseIn
from slipstream_proxy.store import open_store
from slipstream_proxy.store.values import EpisodeFilter, Rules

EPISODES = 4_000


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    made = open_store(f"duckdb:///{tmp_path_factory.mktemp('filled') / 's.duckdb'}", Rules())
    filling.fill(made, EPISODES)
    yield made
    made.close()


def test_its_counters_are_what_the_tables_hold(store):
    with store.db.read() as tx:
        kept, counted = store.tallies._sums(tx), store.tallies.counted(tx)
    assert kept == counted
    found = store.statistics.counts(time.time())
    going = EPISODES // filling.OPEN
    assert (found["episodes"], found["calls"]) == (
        {"done": EPISODES - going, "open": going},
        EPISODES * filling.CALLS,
    )
    assert found["orphans"] == 0
    assert found["groups"] == {"forming": going, "trained": EPISODES // filling.GROUP - going}
    (mean,) = store.statistics.success_by_adapter()
    assert (mean["episodes"], round(mean["mean"], 2)) == (EPISODES, 0.45)


@pytest.mark.parametrize("number", [0, 3, EPISODES // 2, EPISODES - 1])
def test_each_episode_has_its_calls_and_its_batch(store, number):
    found = store.episodes.get("-", filling.name_of(number))
    assert (found.calls, len(found.call_list)) == (filling.CALLS, filling.CALLS)
    assert abs(found.started - filling.started_of(number, EPISODES)) < 1.0
    assert len(found.batches) == (0 if number == EPISODES - 1 else 1)


def test_nothing_is_left_to_be_done_to_it(store):
    """What goes on goes on, nothing waits for a judge or a trainer, and no pin is without its episode."""
    now = time.time()
    assert store.judging.lease(GroupLeaseIn(worker="j", names=["reward"]), now) is None
    before = store.statistics.counts(now)
    store.sweep(now)
    assert store.statistics.counts(now) == before
    assert store.pins.open() == {filling.MODEL: EPISODES // filling.OPEN}
    assert len(store.episodes.page(EpisodeFilter(state="open")).episodes) == EPISODES // filling.OPEN
