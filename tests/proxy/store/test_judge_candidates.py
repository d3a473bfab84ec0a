"""Which groups the judge may take."""

from __future__ import annotations

from tests.support.records import NOW, group, reward

from slipstream_proxy.store.write.judge_queue import batched


def newest(store, *names, limit=9):
    with store.db.write() as tx:
        found = store.judging.candidates.newest(tx, "'task'", names, limit, NOW + 99)
        tasks = dict(tx.all("SELECT id, task FROM t_groups"))
    return [tasks[g] for g in found]


def test_what_has_its_scores_is_not_looked_at_again(store):
    store.ingest([*group("a"), *group("b", start=NOW + 5)], {})
    store.ingest([reward("a-0", name="judge"), reward("a-1", name="judge")], {})
    for _ in range(2):
        assert newest(store, "judge") == ["b"]
        assert sorted(newest(store, "judge", "style")) == ["a", "b"]
    store.ingest([reward("b-0", name="judge"), reward("b-1", name="judge")], {})
    assert newest(store, "judge") == []


def test_no_more_than_asked_for(store):
    for i in range(5):
        store.ingest(group(f"t{i}", start=NOW + 10 * i), {})
    assert newest(store, "judge", limit=2) == ["t4", "t3"]


def test_batches():
    assert list(batched("abcde", 2)) == [["a", "b"], ["c", "d"], ["e"]]
    assert list(batched([], 2)) == []
