"""Episodes by what their calls say, beside a search that reads everything."""

from __future__ import annotations

import random
import time

import pytest
from tests.support.records import NOW, call, mutation

from slipstream_proxy.store.read.episodes import FIRST_WINDOW, words_of
from slipstream_proxy.store.values import EpisodeFilter


def said(text: str, reply: str = "yes") -> dict:
    choices = [({"role": "assistant", "content": reply}, [7], [-0.5])]
    return {"messages": [{"role": "user", "content": text}], "choices": choices}


def found(store, q: str | None = None, **more) -> str:
    return "".join(sorted(e.id for e in store.episodes.page(EpisodeFilter(q=q, **more)).episodes))


@pytest.fixture
def filled(store):
    store.ingest(
        [
            call("a", at=NOW, **said("Book a flight to Oslo", "Booked: SK 461")),
            call(
                "b",
                at=NOW + 1,
                task="fly-home",
                tags={"user": "ann"},
                **said('he said "no"\nand left', "naïve Müller 東京"),
            ),
            call("c", at=NOW + 2, outcome="error", status=500, error='{"message": "out of memory"}', **said("flight")),
            call("d", at=NOW + 3, untrainable="no ids", key="k2", **said("100% of _users_ \\ role-play")),
            call("e", at=NOW + 86_400 * 2, **said("later")),
        ],
        {},
    )
    return store


WANTED = (
    ("flight", "ac"), ("FLIGHT oslo", "a"), ('"flight to oslo"', "a"), ('"oslo flight"', ""), ("sk 461", "a"), ("booked", "a"),
    ('"he said"', "b"), ('said no', "b"), ("and left", "b"), ("naïve", "b"), ("東京", "b"), ("müller", "b"), ("fly-home", "b"), ("ann", "b"),
    ("memory", "c"), ("100%", "d"), ("_users_", "d"), ("\\", "d"), ("role", "d"), ("content", ""), ("assistant", ""), ("%", "d"), (":", "ac"),
    ("later", "e"), ("flight later", ""), ("e", "abcde"), ("nothing-of-this", ""), ("{", "c"),
)  # fmt: skip


def test_words_phrases_and_what_is_no_text(filled):
    for q, ids in WANTED:
        assert found(filled, q) == ids, q


def test_a_calls_id_finds_its_run_however_it_is_written(store):
    ids = {"a": "06614a61804798403b60000002", "b": "01J9ZQ0F5Y3T8W6V2K7M4N1PQR"}  # a worker's, and an import's
    for name, call_id in ids.items():
        store.ingest([call(name, id=call_id, **said("words"))], {})
    for name, call_id in ids.items():
        assert found(store, call_id) == found(store, call_id.upper()) == found(store, f" {call_id.lower()} ") == name


def test_with_other_filters(filled):
    assert found(filled, "flight", outcome="error") == "c"
    assert found(filled, "flight", key="k2") == ""
    assert found(filled, outcome="error") == "c"
    assert found(filled, outcome="ok") == "abde"
    assert found(filled, trainable=True) == "abe"
    assert found(filled, trainable=False) == "cd"
    assert found(filled, trainable=False, outcome="ok") == "d"
    assert found(filled, tagged=["user"]) == "b"
    assert found(filled, tagged=["use"]) == ""


def test_a_calls_id_finds_its_episode(filled):
    name = "01JD0000000000000000000ABC"
    filled.ingest([call("f", at=NOW + 5, id=name, **said("x"))], {})
    assert found(filled, name) == "f"
    assert found(filled, name.lower()) == "f"
    assert found(filled, "01JD0000000000000000000ABD") == ""


def test_what_is_forgotten_is_not_found(filled):
    filled.ingest([mutation("delete", {"key": "-", "episode": "a"})], {})
    filled.forget([("-", "a")], NOW)
    assert found(filled, "oslo") == ""


def test_a_conversation_stored_as_deltas_is_found_as_one(store):
    turns = [{"role": "user", "content": "first words"}]
    store.ingest([call("long", messages=list(turns))], {})
    turns += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "second thought"}]
    store.ingest([call("long", at=NOW + 1, messages=list(turns))], {})
    assert found(store, "first thought") == "long"


def test_pages_together_are_what_a_search_of_everything_finds(store):
    chance = random.Random(7)
    words = ["alpha", "beta", "gamma", "user", "Ünder", "x1"]
    texts = {f"e{i:04d}": " ".join(chance.sample(words, 3)) for i in range(FIRST_WINDOW * 2 + 40)}
    for part in range(0, len(texts), 200):
        items = list(texts.items())[part : part + 200]
        store.ingest([call(name, at=NOW + int(name[1:]) // 3, **said(text)) for name, text in items], {})
    for q in ("alpha", "beta gamma", "user x1", '"alpha beta"', "none"):
        for patience in (0.0, 5.0):
            seen, cursor = [], None
            while True:
                page = store.episodes.page(EpisodeFilter(q=q, limit=37, cursor=cursor, patience=patience))
                seen += [e.id for e in page.episodes]
                assert page.next is None or page.searched_to is not None
                if (cursor := page.next) is None:
                    break
            wanted = [n for n, text in texts.items() if all(w in text.lower() for w in words_of(q))]
            assert seen == sorted(wanted, key=lambda n: (int(n[1:]) // 3, n), reverse=True), q
    names = [e.id for batch in store.episodes.export(EpisodeFilter(q="beta gamma")) for e in batch]
    assert sorted(names) == sorted(n for n, t in texts.items() if "beta" in t and "gamma" in t)


def test_export_of_pairs_takes_the_same_episodes(filled):
    assert list(filled.episodes.ranked(EpisodeFilter(q="flight"))) == []


def test_patience_bounds_the_time(store):
    for part in range(4):
        records = [call(f"e{part}-{i}", at=NOW + part * 1000 + i, **said("word " * 2000)) for i in range(250)]
        store.ingest(records, {})
    started = time.monotonic()
    page = store.episodes.page(EpisodeFilter(q="absent", patience=0.0))
    assert page.next is not None
    assert time.monotonic() - started < 2.0
