from __future__ import annotations

import json

import pyarrow.parquet as pq
from tests.support.records import NOW, call, reward

from slipstream_proxy.log.records import mark_of
from slipstream_proxy.store.write.deletion import forget_archived


def test_a_day_is_written_whole(store, tmp_path):
    one = call("a", messages=["x"], prompt=[1, 2], tags={"u": "1"})
    two = call("a", messages=["x", one.parsed.choices[0].message, "y"], prompt=[1, 2, 7, 8, 9, 5])
    store.ingest([one, call("b"), two, reward("a", 0.5)], {})
    (day,) = store.archive.days()
    path = store.archive.write(day, tmp_path / "cold", batch=1)
    rows = pq.read_table(path).to_pylist()
    assert [(r["episode"], r["number"], r["reward"]) for r in rows] == [("a", 0, 0.5), ("a", 1, 0.5), ("b", 0, None)]
    assert rows[1]["prompt_ids"] == two.parsed.prompt_ids
    assert json.loads(rows[1]["messages"]) == two.parsed.messages
    assert rows[1]["completion_ids"] == [[7, 8, 9]]
    assert rows[1]["logprobs"] == [[-0.5, -0.25, -1.0]]
    assert json.loads(rows[0]["tags"]) == {"u": "1"}
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert store.archive.write("2001-01-01", tmp_path) is None


def test_calls_that_come_after_their_day_was_archived_are_put_to_it(store, tmp_path):
    """A proxy that was dead for days reads its spool in. A try that was killed before the day was dropped changes nothing."""
    store.ingest([call("a"), call("b")], {})
    (day,) = store.archive.days()
    for _ in range(2):
        path = store.archive.write(day, tmp_path)
    store.archive.drop(day)
    store.ingest([call("c", at=NOW)], {})
    assert store.archive.write(day, tmp_path, batch=1) == path
    store.archive.drop(day)
    assert [r["episode"] for r in pq.read_table(path).to_pylist()] == ["a", "b", "c"]
    store.calls.days.ensure({day})
    assert store.archive.write(day, tmp_path) is None
    assert pq.read_table(path).num_rows == 3


def test_no_call_is_dropped_that_came_while_its_day_was_archived(store, tmp_path, monkeypatch):
    store.ingest([call("a"), call("b")], {})
    (day,) = store.archive.days()
    write, late = store.archive.write, ["c", "d", "e", "f"]

    def slowly(*args):
        path = write(*args)
        if late:
            store.ingest([call(late.pop(0), at=NOW)], {})
        return path

    monkeypatch.setattr(store.archive, "write", slowly)
    assert store.archive.retire(day, tmp_path / "cold") == 0 and store.archive.days() == [day], "another time"
    assert store.archive.retire(day, tmp_path / "cold") == 6
    (path,) = (tmp_path / "cold").iterdir()
    assert [r["episode"] for r in pq.read_table(path).to_pylist()] == ["a", "b", "c", "d", "e", "f"]
    assert store.archive.retire(day, tmp_path / "cold") == 0


def test_an_archive_forgets_too(store, tmp_path):
    store.ingest([call("a"), call("b"), call("a", key="k2")], {})
    path = store.archive.write(store.archive.days()[0], tmp_path / "cold")
    store.forget([("-", "a")], NOW)
    assert forget_archived(path, [("-", mark_of("a")), ("-", mark_of("none"))], "p1") == 1
    assert [(r["key"], r["episode"]) for r in pq.read_table(path).to_pylist()] == [("-", "b"), ("k2", "a")]
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    store.forget([("-", "b")], NOW)
    assert [e.archives for e in store.erasing()] == [(path.name,)] * 2


def test_a_dropped_day_keeps_its_episodes(store):
    store.ingest([call("a", done=True), reward("a")], {})
    assert store.archive.drop(store.archive.days()[0]) == 1
    found = store.episodes.get("-", "a")
    assert (found.calls, found.call_list, found.reward) == (1, [], 1.0)
    store.ingest([call("a", at=NOW + 1)], {})
    assert len(store.episodes.get("-", "a").call_list) == 1
