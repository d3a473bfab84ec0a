"""Conformance: episodes read back over days, in order."""

from __future__ import annotations

from tests.support.records import NOW, call

DAY = 86_400.0


def test_an_episode_over_days_whose_clock_jumped(store):
    times = [NOW, NOW + 2 * DAY, NOW - DAY, NOW + DAY]
    store.ingest([call("a", at=t, messages=[{"n": i}]) for i, t in enumerate(times)], {})
    found = store.episodes.get("-", "a")
    assert [(c.number, c.at, c.messages) for c in found.call_list] == [(i, t, [{"n": i}]) for i, t in enumerate(times)]
    assert (found.started, len(store.archive.days())) == (NOW - DAY, 4)


def test_a_day_made_by_one_opening_is_there_for_the_next(opened):
    first = opened()
    first.ingest([call("a")], {})
    first.close()
    second = opened()
    second.ingest([call("a", at=NOW + 1)], {})
    assert len(second.episodes.get("-", "a").call_list) == 2


def test_a_reader_goes_by_the_days_of_its_own_moment(store):
    """A day is dropped, and what is remembered of it goes a moment later."""
    store.ingest([call("a", at=NOW), call("b", at=NOW + 2 * DAY)], {})
    first, second = store.archive.days()
    remembered = set(store.calls.days._days)
    store.archive.drop(first)
    store.calls.days._days |= remembered
    store.snapshot()
    assert [len(store.episodes.get("-", name).call_list) for name in ("a", "b")] == [0, 1]
    assert store.archive.days() == [second]
