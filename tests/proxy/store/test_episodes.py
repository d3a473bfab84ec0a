"""Conformance: lists, filters, exports."""

from __future__ import annotations

import pytest
from tests.support.records import NOW, call, group, reward

from slipstream_proxy.store.read import episodes
from slipstream_proxy.store.tables.rows import cursor_of
from slipstream_proxy.store.values import EpisodeFilter


@pytest.fixture
def filled(store):
    store.ingest(
        [
            call("a", tags={"user": "ann", "x": "1"}, adapter="m@1"), call("b", at=NOW + 10, tags={"user": "bob"}, task="t2", key="k2"),
            call("c", at=NOW + 20, split="eval", done=True), call("d", at=NOW + 30, trained="other", tags={"user": 'a"n%n_'}),
            reward("a", 0.25), reward("c", 0.75),
        ],
        {},
    )  # fmt: skip
    return store


WANTED = (
        ({}, "dcba"), ({"key": "k2"}, "b"), ({"task": "t2"}, "b"), ({"split": "eval"}, "c"), ({"adapter": "m@1"}, "a"), ({"state": "done"}, "c"),
        ({"model": "other"}, "d"), ({"tags": {"user": "ann"}}, "a"), ({"tags": {"user": "ann", "x": "2"}}, ""), ({"tags": {"user": 'a"n%n_'}}, "d"),
        ({"tags": {"user": "an"}}, ""), ({"reward_min": 0.5}, "c"), ({"reward_max": 0.5}, "a"), ({"since": NOW + 10, "until": NOW + 30}, "cb"),
)  # fmt: skip


def test_filters(filled):
    for wanted, ids in WANTED:
        assert "".join(e.id for e in filled.episodes.page(EpisodeFilter(**wanted)).episodes) == ids, wanted


def test_pages(store):
    store.ingest([call(f"e{i:02d}", at=NOW + i // 2) for i in range(7)], {})
    seen, cursor = [], None
    while True:
        page = store.episodes.page(EpisodeFilter(limit=3, cursor=cursor))
        seen.append([e.id for e in page.episodes])
        cursor = page.next
        if cursor is None:
            break
    assert seen == [["e06", "e05", "e04"], ["e03", "e02", "e01"], ["e00"]]
    with pytest.raises(ValueError):
        store.episodes.page(EpisodeFilter(cursor="!!nonsense"))


def test_export_gives_everything_with_tokens(filled, monkeypatch):
    monkeypatch.setattr(episodes, "EPISODES_PER_ORDER_LOOKUP", 3)
    batches = list(filled.episodes.export(EpisodeFilter()))
    assert [[e.id for e in b] for b in batches] == [["d", "c", "b"], ["a"]]
    assert batches[1][0].call_list[0].prompt_ids == [1, 2, 3]
    assert batches[1][0].rewards[0].adapter == "m@1"
    assert list(filled.episodes.export(EpisodeFilter(key="nobody"))) == []


def test_best_and_worst_runs_of_each_task(store):
    records = [
        *group("a", 6),
        *group("same", 1),
        *group("b", 2, key="k2"),
        call("late", task="a", at=NOW + 60),
        call("none", task=None),
    ]
    store.ingest([*records, reward("none", 9.0)], {})
    best, worst = (list(x) for x in zip(*store.episodes.ranked(EpisodeFilter(), 2), strict=True))
    assert best == [[("-", "a-5"), ("-", "a-4")], [("k2", "b-1"), ("k2", "b-0")]]
    assert worst == [[("-", "a-0"), ("-", "a-1")], [("k2", "b-0"), ("k2", "b-1")]]
    assert list(store.episodes.ranked(EpisodeFilter(key="k2"))) == [(best[1], worst[1])]
    assert list(store.episodes.ranked(EpisodeFilter(reward_max=1.5))) == []


def test_whose_an_id_is_and_which_calls_it_has(store):
    store.ingest([call("a", id="c1"), call("a", key="k2"), call("gone", key="k2"), reward("a", 1.0)], {})
    store.forget([("k2", "gone")], NOW)
    assert (store.episodes.owners("a"), store.episodes.owners("gone"), store.episodes.owners("x")) == (
        ["-", "k2"],
        [],
        [],
    )
    assert store.episodes.owners("a", most=1) == ["-"]
    assert store.episodes.has_call("-", "a", "c1")
    assert not store.episodes.has_call("k2", "a", "c1")
    assert not store.episodes.has_call("-", "x", "c1")


def test_an_export_is_cut_where_a_memory_would_be_full(filled, monkeypatch):
    monkeypatch.setattr(episodes, "PART_CALLS", 1)
    assert [[e.id for e in b] for b in filled.episodes.export(EpisodeFilter())] == [["d"], ["c"], ["b"], ["a"]]
    monkeypatch.setattr(episodes, "PART_CALLS", 100)
    monkeypatch.setattr(episodes, "PART_TOKENS", 1)
    assert len(list(filled.episodes.export(EpisodeFilter()))) == 4


def test_what_is_forgotten_while_an_export_runs_is_not_in_it(filled, monkeypatch):
    monkeypatch.setattr(episodes, "PART_CALLS", 1)
    parts = filled.episodes.export(EpisodeFilter())
    assert [e.id for e in next(parts)] == ["d"]
    filled.forget([("k2", "b")], NOW)
    assert [e.id for part in parts for e in part] == ["c", "a"]


def test_postgresql_finds_an_exports_next_page_by_its_index(opened, url):
    store = opened()
    if not store.shared:
        pytest.skip("DuckDB has no indexes: it reads the column of times, a chunk of pages at once")
    where, params = episodes.where_of(EpisodeFilter(cursor=cursor_of(NOW, "-/e5")))
    with store.db.write() as tx:
        rows = """INSERT INTO t_episodes (eid, key, id, state, split, started, last_at, calls)
            SELECT '-/e' || i, '-', 'e' || i, 'done', 'train', i, i, 1 FROM generate_series(1, 5000) r(i)"""
        tx.run(rows)
        tx.run("ANALYZE t_episodes")
        sql = f"EXPLAIN SELECT eid FROM t_episodes WHERE {where} ORDER BY started DESC, eid DESC LIMIT ?"
        plan = "\n".join(line for (line,) in tx.all(sql, (*params, 100)))
    assert "i_episodes_started" in plan
    assert "Sort" not in plan, "the index is in that order"
    assert "ROW(started, eid) <" in plan.split("Index Cond")[1].splitlines()[0]
