"""Conformance: rewards as they came, and each episode's combined one."""

from __future__ import annotations

import pytest
from tests.support.records import NOW, call, done, mutation, reward

from slipstream_proxy.store.tables.tallies import newest_rewards
from slipstream_proxy.store.values import RewardAsk


def test_a_reward_before_its_first_call_waits_for_it(store):
    store.ingest([reward("late", 0.5)], {})
    assert store.standings.ask([RewardAsk("-", "late", None)], NOW)[0].known is False
    store.ingest([call("late")], {})
    assert store.episodes.get("-", "late").reward == 0.5
    assert store.standings.ask([RewardAsk("-", "late", None)], NOW)[0].known is True


def test_a_reward_whose_episode_never_comes_is_dropped_and_refused(opened):
    store = opened(orphan_ttl=60.0)
    store.ingest([reward("never", at=NOW)], {})
    assert store.standings.ask([RewardAsk("-", "never", None)], NOW + 59)[0].how != "late"
    assert store.standings.ask([RewardAsk("-", "never", None)], NOW + 61)[0].how == "late"
    store.sweep(NOW + 61)
    assert store.standings.ask([RewardAsk("-", "never", None)], NOW + 62)[0].how == "late"
    store.ingest([call("never", at=NOW + 62)], {})
    assert store.episodes.get("-", "never").reward is None


def test_one_idempotency_key_counts_once_in_one_batch_or_in_two(store):
    first = reward("a", 1.0, idem="k")
    store.ingest([call("a"), first, reward("a", 2.0, idem="k")], {})
    store.ingest([reward("a", 3.0, idem="k"), reward("a", 4.0, name="other", idem="l")], {})
    assert [r.value for r in store.episodes.get("-", "a").rewards] == [1.0, 4.0]
    assert store.standings.ask([RewardAsk("-", "a", "k")], NOW)[0].stored is False
    assert store.standings.ask([RewardAsk("-", "a", "new")], NOW)[0].stored is True


def test_the_latest_of_a_name_wins_whoever_posts_it(store):
    store.ingest([call("a"), reward("a", 1.0, source="agent"), reward("a", 0.25, source="human")], {})
    assert store.episodes.get("-", "a").reward == 0.25


def test_it_trains_only_when_every_weighted_name_is_there(opened):
    store = opened(weights={"reward": 1.0, "judge": 2.0})
    store.ingest([call("a"), reward("a", 0.5)], {})
    assert store.episodes.get("-", "a").reward is None
    store.ingest([reward("a", 0.25, name="judge"), reward("a", 9.0, name="unweighted")], {})
    assert store.episodes.get("-", "a").reward == pytest.approx(1.0)


def test_new_weights_count_for_what_is_stored(opened):
    store = opened()
    store.ingest([call("a"), reward("a", 0.5), reward("a", 1.0, name="judge"), done("a")], {})
    assert store.episodes.get("-", "a").reward == 0.5
    store.close()
    store = opened(weights={"reward": 1.0, "judge": 2.0})
    assert store.episodes.get("-", "a").reward == 2.5
    store.close()
    assert opened().episodes.get("-", "a").reward == 0.5


def test_a_deleted_episode_takes_no_reward(store):
    store.ingest([call("a")], {})
    store.forget([("-", "a")], NOW)
    assert store.standings.ask([RewardAsk("-", "a", None)], NOW)[0].how == "forgotten"


def test_where_many_episodes_stand(opened):
    """The same answer as a post of each alone, with one look."""
    store = opened(orphan_ttl=60.0)
    store.ingest([call("there"), call("forgotten"), reward("early", at=NOW), reward("late", at=NOW - 61)], {})
    store.forget([("-", "forgotten")], NOW)
    names = [("-", i) for i in ("there", "forgotten", "early", "late", "nobody")] + [("other", "there")]
    found = store.standings.of(names, NOW)
    assert list(found.values()) == ["known", "gone", "new", "gone", "new", "new"]
    for name, standing in found.items():
        ack = store.standings.ask([RewardAsk(*name)], NOW)[0]
        assert standing == ("gone" if ack.how in ("forgotten", "late") else ack.how)
    store.sweep(NOW)
    assert store.standings.of([("-", "late")], NOW) == {("-", "late"): "gone"}
    assert store.standings.of([], NOW) == {}


def test_what_is_remembered_of_rewards_is_what_is_stored(store, monkeypatch):
    """Also behind a transaction that failed, for calls' own rewards, and for runs that were forgotten."""

    def agree() -> None:
        eids = [f"-/{run}" for run in "abc"]
        with store.db.read() as tx:
            assert sorted(store.rewards.newest(tx, eids)) == sorted(newest_rewards(tx, eids))

    store.ingest([call("a"), call("b"), reward("a", 0.1), reward("b", 0.2), reward("c", 0.3)], {})
    agree()
    store.ingest([reward("a", 0.4), reward("a", 0.5, source="human"), reward("b", 0.6, name="style")], {})
    agree()
    with monkeypatch.context() as broken, pytest.raises(OSError, match="full"):
        broken.setattr(store.tallies, "insert", lambda *_: (_ for _ in ()).throw(OSError("full")))
        store.ingest([reward("a", 0.9)], {})
    assert store.episodes.get("-", "a").reward == 0.5
    agree()
    store.ingest([call("c"), reward("a", 0.7)], {})
    agree()
    store.ingest([mutation("delete", {"key": "-", "episode": "b"})], {})
    store.ingest([reward("b", 1.0), reward("a", 0.8)], {})
    agree()
    assert store.episodes.get("-", "a").reward == 0.8 and store.episodes.get("-", "c").reward == 0.3
