"""Conformance: how episodes are forgotten."""

from __future__ import annotations

import pytest
from tests.support.records import NOW, at, call, done, group, mutation, reward, want
from tests.support.store_writes import take_ack

from slipstream.contract import BatchAck
from slipstream_proxy.log.records import mark_of
from slipstream_proxy.store.values import EpisodeFilter


def test_forgetting_names_the_adapters_and_swallows_what_still_comes(store):
    records = group("t1")
    store.ingest(records, at(0, 1))
    leased = store.batches.lease(want(), {}, 0, NOW + 5)
    assert take_ack(store, leased.id, BatchAck(lease=leased.lease, outcome="trained", adapter="m@1"), NOW + 6)
    assert store.forget([("-", "nobody")], NOW).names == []
    assert store.forget([("-", "t1-0")], NOW).adapters == ["m@1"]
    assert store.episodes.get("-", "t1-0") is None
    assert [e.id for e in store.episodes.page(EpisodeFilter()).episodes] == ["t1-1"]
    assert [e.id for e in store.episodes.page(EpisodeFilter(state="deleted")).episodes] == [mark_of("t1-0")]
    store.ingest([records[0], call("t1-0"), reward("t1-0"), done("t1-0")], at(0, 2))
    assert store.episodes.get("-", "t1-0") is None
    assert store.forget([("-", "t1-0")], NOW).adapters == ["m@1"], "asked again it answers the same"
    assert store.statistics.counts(NOW)["calls"] == 1


def test_an_episode_deleted_while_it_is_trained_on(store):
    store.ingest(group("t1"), {})
    leased = store.batches.lease(want(), {}, 0, NOW + 5)
    assert store.forget([("-", "t1-0")], NOW).adapters == []
    assert take_ack(store, leased.id, BatchAck(lease=leased.lease, outcome="trained", adapter="m@1"), NOW + 6)
    assert store.forget([("-", "t1-0")], NOW).adapters == ["m@1"]


def test_each_proxy_of_a_store_erases_its_own_spool(opened):
    one = opened(instance="one")
    if not one.shared:
        pytest.skip("one proxy has the file")
    two = opened(instance="two")
    two.ingest([call("a")], at(0, 1))
    one.ingest([call("b")], at(0, 1))
    one.forget([("-", "a")], NOW)
    assert [(e.episode, e.tables is None) for s in (one, two) for e in s.deletion.waiting()] == [
        (mark_of("a"), False),
        (mark_of("a"), True),
    ]
    two.deletion.alive(NOW)
    assert [(p.proxy, p.episodes, p.away) for p in one.deletion.elsewhere(NOW + 30)] == [("two", 1, False)]
    assert one.deletion.elsewhere(NOW + 90)[0].away
    one.deletion.erased(one.deletion.waiting())
    assert (one.deletion.waiting(), len(two.deletion.waiting())) == ([], 1)
    two.deletion.erased(two.rewrite())
    assert one.deletion.elsewhere(NOW) == []


def test_what_comes_for_a_forgotten_episode_is_told(store):
    store.ingest([call("a"), call("b")], {})
    store.forget([("-", "a")], NOW)
    store.ingest([call("a"), call("b"), reward("a")], {})
    assert store.dropped == [("-", mark_of("a"))] * 2
    store.ingest([call("b")], {})
    assert store.dropped == []


def test_a_delete_from_the_spool(store):
    store.ingest(
        [
            call("a"),
            mutation("delete", {"key": "-", "episode": "a"}),
            mutation("delete", {"key": "-", "episode": "b"}),
            reward("b"),
        ],
        {},
    )
    store.ingest([call("b"), call("c")], {})
    store.ingest([mutation("delete", {"key": None, "episode": "c"})], {})
    store.sweep(NOW)
    assert store.episodes.page(EpisodeFilter()).episodes == []
    assert store.statistics.counts(NOW)["rewards"] == {}


def test_the_other_calls_of_that_day_stay_whole(store):
    history = [{"role": "user", "content": "1"}]
    one = call("keep", messages=history, prompt=[1, 2])
    two = call(
        "keep",
        messages=[*history, one.parsed.choices[0].message, {"role": "user", "content": "2"}],
        prompt=[1, 2, 7, 8, 9, 3],
    )
    store.ingest([call("gone"), one, call("gone"), two], {})
    store.forget([("-", "gone")], NOW)
    three = call("keep", messages=two.parsed.messages[:1], prompt=[1, 2, 7])
    store.ingest([three], {})
    got = store.episodes.get("-", "keep", tokens=True).call_list
    assert [c.prompt_ids for c in got] == [[1, 2], [1, 2, 7, 8, 9, 3], [1, 2, 7]]
    assert got[1].messages == two.parsed.messages
