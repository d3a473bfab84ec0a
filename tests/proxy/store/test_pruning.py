"""Conformance: what only the recent past needs goes by age."""

from __future__ import annotations

from tests.support.records import NOW, call, done, reward

from slipstream.shared.clock import DAY_S
from slipstream_proxy.store.write.archive import ArchivePlace


def rows(store, sql):
    with store.db.read() as tx:
        return sorted(tx.all(sql))


def test_ids_and_pins_go_by_age_and_those_in_use_stay(store):
    store.ingest([call("old"), done("old"), call("open"), reward("old", id="m1")], {})
    store.ingest([reward("old", at=NOW + 6 * DAY_S, id="m9")], {})
    assert store.prune(NOW + 6.5 * DAY_S, None) == 0
    stamps = 1 if store.db.shared else 0
    assert store.prune(NOW + 8 * DAY_S, None) == 3 + stamps
    assert rows(store, "SELECT eid FROM t_pins") == [("-/open",)], "a running episode keeps its adapter"
    assert rows(store, "SELECT id FROM t_seen") == [("m9",)]
    store.ingest([call("old", at=NOW + 8 * DAY_S), reward("new", at=NOW + 8 * DAY_S)], {})
    assert store.episodes.get("-", "old").calls == 2


def test_lists_of_exports_go_with_retention_and_those_of_archives_stay(store, tmp_path):
    store.ingest([call("a"), call("b")], {})
    store.archive.write(store.archive.days()[0], ArchivePlace(str(tmp_path)))
    store.archive.note_export("x1", "jsonl", [("-", "a"), ("-", "b")], NOW)
    store.archive.note_export("x2", "jsonl", [("-", "a")], NOW + 2 * DAY_S)
    assert store.prune(NOW + 3 * DAY_S, None) == 0
    assert store.prune(NOW + 3 * DAY_S, 2 * DAY_S) == 2
    store.archive.note_export("x3", "jsonl", [("-", "b")], NOW + 3 * DAY_S)
    assert store.prune(NOW + 367.5 * DAY_S, None) == 1, "x2 has gone, x3 stays"
    store.archive.note_export("x2", "jsonl", [("-", "a")], NOW + 367 * DAY_S)
    gone = store.forget([("-", "a")], NOW)
    assert gone.exports == ["x2"] and len(store.deletion.waiting()[-1].archives) == 1
