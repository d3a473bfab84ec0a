"""Conformance: an episode's calls, each kept without what an earlier one holds already."""

from __future__ import annotations

import pytest
from tests.support.records import NOW, call

DAY = 86_400.0
SYSTEM = {"role": "system", "content": "be good"}


def turns(n):
    """The conversation before turn ``n``."""
    said = [SYSTEM]
    for i in range(n):
        said += [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": "yes"}]
    return [*said, {"role": "user", "content": f"q{n}"}]


def test_calls_come_back_whole_and_in_order(store):
    store.ingest([call("a", at=NOW + i, messages=turns(i), prompt=[1, 2, 3, *range(i)]) for i in range(5)], {})
    calls = store.episodes.get("-", "a", tokens=True).call_list
    assert [c.number for c in calls] == [0, 1, 2, 3, 4]
    assert [c.messages for c in calls] == [turns(i) for i in range(5)]
    assert [c.prompt_ids for c in calls] == [[1, 2, 3, *range(i)] for i in range(5)]


def test_a_call_goes_on_after_a_restart(opened):
    store = opened()
    store.ingest([call("a", at=NOW, messages=turns(0), prompt=[1, 2])], {})
    store.close()
    store = opened()
    store.ingest([call("a", at=NOW + 1, messages=turns(1), prompt=[1, 2, 7, 8, 9, 3])], {})
    first, second = store.episodes.get("-", "a").call_list
    assert (first.messages, second.messages) == (turns(0), turns(1))


def test_an_episode_may_last_over_midnight(store):
    store.ingest([call("a", at=NOW), call("a", at=NOW + DAY), call("a", at=NOW + 2 * DAY)], {})
    assert [c.number for c in store.episodes.get("-", "a").call_list] == [0, 1, 2]
    assert len(store.archive.days()) == 3


def test_the_same_call_twice_is_one(store):
    one = call("a")
    store.ingest([one], {})
    store.ingest([one, one], {})
    assert store.episodes.get("-", "a").calls == 1


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_of_several_attempts_the_last_counts_in_whatever_order_they_come(store, order):
    attempts = [call("a", at=NOW + i, body_hash="same", attempt=i) for i in range(3)]
    for i in order:
        store.ingest([attempts[i]], {})
    found = {c.id: c for c in store.episodes.get("-", "a").call_list}
    assert [found[a.head.id].outcome for a in attempts] == ["superseded", "superseded", "ok"]
    assert [found[a.head.id].trainable for a in attempts] == [False, False, True]


def test_stored_ids_are_told_from_others(store):
    calls = [call("a", at=NOW + i) for i in range(3)]
    store.ingest(calls[:2], {})
    assert store.episodes.call_ids("-", "a") == {c.head.id for c in calls[:2]}
    assert not store.episodes.has_call("-", "a", calls[2].head.id)
    assert store.episodes.has_call("-", "a", calls[0].head.id)
