"""Conformance: an episode's calls, by pages."""

from __future__ import annotations

from tests.support.records import NOW, call

from slipstream_proxy.store.conversation.call_rows import EVERY_CALL, PAGE_CALLS, CallPage


def test_the_default_is_all_of_a_usual_run():
    assert (EVERY_CALL.first, EVERY_CALL.most) == (0, PAGE_CALLS)


def test_pages_are_the_whole_in_parts(store):
    store.ingest([call("a", at=NOW + i) for i in range(7)], {})
    whole = [c.id for c in store.episodes.get("-", "a").call_list]
    assert len(whole) == 7
    parts = []
    for first in range(0, 9, 3):
        detail = store.episodes.get("-", "a", page=CallPage("whole", first, 3))
        assert detail.calls == 7, "the episode's own count is not the page's"
        parts.append([c.number for c in detail.call_list])
    assert parts == [[0, 1, 2], [3, 4, 5], [6]]


def test_a_page_behind_the_last_call_is_empty(store):
    store.ingest([call("a")], {})
    assert store.episodes.get("-", "a", page=CallPage("whole", 5, 3)).call_list == []
