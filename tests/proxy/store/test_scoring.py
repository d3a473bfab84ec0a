"""Which reward trains."""

from __future__ import annotations

import pytest
from tests.support.records import NOW, call, done, group, reward, want

from slipstream_proxy.store.learning.rewards import combine, combine_calls
from slipstream_proxy.store.values import RewardAsk, Rules


def test_a_missing_reward_is_not_zero(store):
    store.ingest([call("a", done=True), call("b", done=True), reward("a", 0.0)], {})
    assert store.episodes.get("-", "a").reward == 0.0
    assert store.episodes.get("-", "b").reward is None
    assert store.batches.lease(want(), {}, 0, NOW + 9) is None
    store.ingest([reward("b", 0.0)], {})
    assert store.batches.lease(want(), {}, 0, NOW + 9) is not None


def test_the_latest_wins_of_any_source(store):
    store.ingest(
        [call(), reward(value=1, source="agent"), reward(value=2, source="user"), reward(value=3, source="agent")], {}
    )
    assert store.episodes.get("-", "e1").reward == 3
    store.ingest([reward(value=4, source="user")], {})
    found = store.episodes.get("-", "e1")
    assert found.reward == 4
    assert [r.value for r in found.rewards] == [1, 2, 3, 4]


def test_an_idempotency_key_counts_once(store):
    store.ingest([call(), reward(value=1, key="-", id="m1")], {})
    one, two = reward(value=5), reward(value=6)
    one.data["reward"]["key"] = two.data["reward"]["key"] = "k"
    store.ingest([one], {})
    store.ingest([two], {})
    assert store.episodes.get("-", "e1").reward == 5
    assert store.standings.ask([RewardAsk("-", "e1", "k")], NOW)[0].stored is False
    assert store.standings.ask([RewardAsk("-", "e1", "other")], NOW)[0].stored is True


def test_a_reward_may_come_before_its_calls(opened):
    store = opened(orphan_ttl=100)
    store.ingest([reward(value=7)], {})
    ack = store.standings.ask([RewardAsk("-", "e1", None)], NOW + 5)[0]
    assert (ack.stored, ack.known) == (True, False)
    assert store.statistics.counts(NOW)["orphans"] == 1
    store.sweep(NOW + 50)
    store.ingest([call()], {})
    assert store.episodes.get("-", "e1").reward == 7
    assert store.standings.ask([RewardAsk("-", "e1", None)], NOW + 500)[0].known


def test_an_orphan_expires(opened):
    store = opened(orphan_ttl=100)
    store.ingest([reward("lost")], {})
    assert store.standings.ask([RewardAsk("-", "lost", None)], NOW + 200)[0].how == "late"
    store.sweep(NOW + 200)
    assert store.standings.ask([RewardAsk("-", "lost", None)], NOW + 201)[0].how == "late"
    store.ingest([call("lost")], {})
    assert store.episodes.get("-", "lost").reward is None


def test_weights_and_other_names(opened):
    store = opened(weights={"won": 2.0, "judge": 0.5})
    store.ingest([call(), reward(name="won", value=1), reward(name="speed", value=100)], {})
    assert store.episodes.get("-", "e1").reward is None
    store.ingest([reward(name="judge", value=1)], {})
    assert store.episodes.get("-", "e1").reward == 2.5


def test_new_weights_count_for_what_is_stored(opened):
    first = opened()
    first.ingest([*group("t1"), reward("t1-0", 3, name="other")], {})
    assert first.statistics.counts(NOW)["groups"] == {"ready": 1}
    first.close()
    second = opened(weights={"other": 1.0})
    assert second.episodes.get("-", "t1-0").reward == 3
    assert second.episodes.get("-", "t1-1").reward is None
    assert second.statistics.counts(NOW)["groups"] == {"waiting_reward": 1}


def test_a_reward_of_a_deleted_episode_is_swallowed(store):
    store.ingest([call(), done()], {})
    store.forget([("-", "e1")], NOW)
    store.ingest([reward(), call(at=NOW + 1)], {})
    assert store.episodes.get("-", "e1") is None
    assert store.standings.ask([RewardAsk("-", "e1", None)], NOW)[0].how == "forgotten"
    assert store.statistics.counts(NOW)["rewards"] == {}


@pytest.mark.parametrize(
    ("rows", "credit", "total", "calls"),
    [
        ([(None, "reward", 1.0)], "episode", 1.0, {}),
        ([("c1", "reward", 1.0), ("c2", "reward", 2.0)], "episode", 3.0, {}),
        ([("c1", "reward", 1.0), (None, "reward", 2.0)], "episode", 3.0, {}),
        ([("c1", "reward", 1.0), (None, "reward", 2.0)], "call", 2.0, {"c1": 1.0}),
        ([("c1", "reward", 1.0)], "call", 0.0, {"c1": 1.0}),
        ([(None, "other", 1.0)], "episode", None, {}),
        ([], "episode", None, {}),
    ],
)
def test_combine(rows, credit, total, calls):
    assert combine(Rules(credit=credit), rows) == total
    assert combine_calls(Rules(credit=credit), rows) == calls
