"""Conformance: how episodes end and are forgotten, and who is pinned to what."""

from __future__ import annotations

import threading

from tests.proxy.store.helpers import NOW, at, call, done, group, mutation, reward, want

from slipstream.contract import BatchAck
from slipstream_proxy.store.protocol import EpisodeFilter, Pin


def test_an_idle_episode_is_done(opened):
    store = opened(idle_timeout=100)
    store.ingest([call("a"), call("b", at=NOW + 80), reward("a"), reward("b")], {})
    store.sweep(NOW + 101)
    assert [(e.id, e.state) for e in store.episodes(EpisodeFilter()).episodes] == [("b", "open"), ("a", "done")]
    store.sweep(NOW + 500)
    assert store.counts(NOW)["groups"] == {"ready": 1}
    store.ingest([call("a", at=NOW + 600)], {})
    found = store.episode("-", "a")
    assert (found.calls, found.state, found.ended) == (2, "done", NOW + 600)


def test_the_first_pin_stays(store):
    assert store.pin("-", "a", "m", "m@1", "candidate", NOW) == Pin("m@1", "candidate")
    assert store.pin("-", "a", "m", "m@2", "live", NOW) == Pin("m@1", "candidate")
    assert store.pin("k", "a", "m", "m@2", "live", NOW) == Pin("m@2", "live")
    assert store.open_pins() == {"m@1": 1, "m@2": 1}
    store.ingest([call("a", adapter="m@1", done=True)], {})
    assert store.open_pins() == {"m@2": 1}
    assert store.move_pins("m@2", "m@3") == 1
    assert store.pin("k", "a", "m", "m@9", "live", NOW) == Pin("m@3", "live")


def test_pins_that_a_worker_decided_alone_are_kept(store):
    store.ingest(
        [
            call("a", adapter="m@1", pin="local"),
            mutation("pin", {"key": "-", "episode": "b", "model": "m", "adapter": "m@2", "arm": "live"}),
        ],
        {},
    )
    assert store.open_pins() == {"m@1": 1, "m@2": 1}
    store.ingest([call("a", adapter="m@2", pin="moved", at=NOW + 1)], {})
    assert store.open_pins() == {"m@2": 2}


def test_a_pin_without_calls_is_let_go(opened):
    store = opened(idle_timeout=100)
    store.pin("-", "a", "m", "m@1", "live", NOW)
    store.sweep(NOW + 50)
    assert store.open_pins() == {"m@1": 1}
    store.sweep(NOW + 200)
    assert store.open_pins() == {}


def test_many_ask_for_one_pin(store):
    got = []

    def ask(n):
        got.append(store.pin("-", "a", "m", f"m@{n}", "live", NOW))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(got) == 8
    assert len({p.adapter for p in got}) == 1


def test_forgetting_names_the_adapters_and_swallows_what_still_comes(store):
    records = group("t1")
    store.ingest(records, at(0, 1))
    leased = store.lease_batch(want(), {}, 0, NOW + 5)
    assert store.ack_batch(leased.id, BatchAck(lease=leased.lease, outcome="trained", adapter="m@1"), NOW + 6)
    assert store.delete("-", "nobody", NOW) is None
    assert store.delete("-", "t1-0", NOW).adapters == ["m@1"]
    assert store.episode("-", "t1-0") is None
    assert [e.id for e in store.episodes(EpisodeFilter()).episodes] == ["t1-1"]
    assert [e.id for e in store.episodes(EpisodeFilter(state="deleted")).episodes] == ["t1-0"]
    store.ingest([records[0], call("t1-0"), reward("t1-0"), done("t1-0")], at(0, 2))
    assert store.episode("-", "t1-0") is None
    assert store.delete("-", "t1-0", NOW).adapters == ["m@1"], "asked again it answers the same"
    assert store.counts(NOW)["calls"] == 1


def test_an_episode_deleted_while_it_is_trained_on(store):
    store.ingest(group("t1"), {})
    leased = store.lease_batch(want(), {}, 0, NOW + 5)
    assert store.delete("-", "t1-0", NOW).adapters == []
    assert store.ack_batch(leased.id, BatchAck(lease=leased.lease, outcome="trained", adapter="m@1"), NOW + 6)
    assert store.delete("-", "t1-0", NOW).adapters == ["m@1"]


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
    assert store.episodes(EpisodeFilter()).episodes == []
    assert store.counts(NOW)["rewards"] == {}


def test_the_other_calls_of_that_day_stay_whole(store):
    history = [{"role": "user", "content": "1"}]
    one = call("keep", messages=history, prompt=[1, 2])
    two = call(
        "keep",
        messages=[*history, one.parsed.choices[0].message, {"role": "user", "content": "2"}],
        prompt=[1, 2, 7, 8, 9, 3],
    )
    store.ingest([call("gone"), one, call("gone"), two], {})
    store.delete("-", "gone", NOW)
    three = call("keep", messages=two.parsed.messages[:1], prompt=[1, 2, 7])
    store.ingest([three], {})
    got = store.episode("-", "keep", tokens=True).call_list
    assert [c.prompt_ids for c in got] == [[1, 2], [1, 2, 7, 8, 9, 3], [1, 2, 7]]
    assert got[1].messages == two.parsed.messages
