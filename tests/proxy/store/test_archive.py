from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from tests.support import free_port, process, wait_for
from tests.support.records import NOW, call, reward

from slipstream.config import Config
from slipstream_proxy.control.status.causes.calls import store_lines
from slipstream_proxy.control.status.causes.surroundings import Surroundings
from slipstream_proxy.log.records import mark_of
from slipstream_proxy.store.tables.driver import QueryError
from slipstream_proxy.store.write.archive import ARCHIVE_SCHEMA, ArchivePlace, forget_archived

DAY_S = 86_400


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    return tmp_path / "cold"


@pytest.fixture
def place(cold: Path) -> ArchivePlace:
    return ArchivePlace(str(cold))


def test_a_day_is_written_whole(store, cold, place):
    one = call("a", messages=["x"], prompt=[1, 2], tags={"u": "1"})
    two = call("a", messages=["x", one.parsed.choices[0].message, "y"], prompt=[1, 2, 7, 8, 9, 5])
    store.ingest([one, call("b"), two, reward("a", 0.5)], {})
    (day,) = store.archive.days()
    name = store.archive.write(day, place, batch=1)
    rows = pq.read_table(cold / name).to_pylist()
    assert [(r["episode"], r["number"], r["reward"]) for r in rows] == [("a", 0, 0.5), ("a", 1, 0.5), ("b", 0, None)]
    assert rows[1]["prompt_ids"] == two.parsed.prompt_ids
    assert json.loads(rows[1]["messages"]) == two.parsed.messages
    assert rows[1]["completion_ids"] == [[7, 8, 9]]
    assert rows[1]["logprobs"] == [[-0.5, -0.25, -1.0]]
    assert json.loads(rows[0]["tags"]) == {"u": "1"}
    assert [p.name for p in cold.iterdir()] == [name]
    assert store.archive.write("2001-01-01", place) is None


def test_calls_that_come_after_their_day_was_archived_are_put_to_it(store, cold, place):
    """A proxy that was dead for days reads its spool in. A try that was killed before the day was dropped changes nothing."""
    store.ingest([call("a"), call("b")], {})
    (day,) = store.archive.days()
    for _ in range(2):
        name = store.archive.write(day, place)
    store.archive.drop(day)
    store.ingest([call("c", at=NOW)], {})
    assert store.archive.write(day, place, batch=1) == name
    store.archive.drop(day)
    assert [r["episode"] for r in pq.read_table(cold / name).to_pylist()] == ["a", "b", "c"]
    store.calls.days.ensure({day})
    assert store.archive.write(day, place) is None
    assert pq.read_table(cold / name).num_rows == 3


def test_no_call_is_dropped_that_came_while_its_day_was_archived(store, cold, place, monkeypatch):
    store.ingest([call("a"), call("b")], {})
    (day,) = store.archive.days()
    write, late = store.archive.write, ["c", "d", "e", "f"]

    def slowly(*args):
        name = write(*args)
        if late:
            store.ingest([call(late.pop(0), at=NOW)], {})
        return name

    monkeypatch.setattr(store.archive, "write", slowly)
    assert store.archive.retire(day, place) == 0 and store.archive.days() == [day], "another time"
    assert store.archive.retire(day, place) == 6
    (path,) = cold.iterdir()
    assert [r["episode"] for r in pq.read_table(path).to_pylist()] == ["a", "b", "c", "d", "e", "f"]
    assert store.archive.retire(day, place) == 0


def test_an_archive_forgets_too(store, cold, place):
    store.ingest([call("a"), call("b"), call("a", key="k2")], {})
    name = store.archive.write(store.archive.days()[0], place)
    store.forget([("-", "a")], NOW)
    assert forget_archived(place, name, [("-", mark_of("a")), ("-", mark_of("none"))], "p1") == 1
    assert [(r["key"], r["episode"]) for r in pq.read_table(cold / name).to_pylist()] == [("-", "b"), ("k2", "a")]
    assert [p.name for p in cold.iterdir()] == [name]
    store.forget([("-", "b")], NOW)
    assert [e.archives for e in store.deletion.waiting()] == [(name,)] * 2


def test_a_dropped_day_keeps_its_episodes(store):
    store.ingest([call("a", done=True), reward("a")], {})
    assert store.archive.drop(store.archive.days()[0]) == 1
    found = store.episodes.get("-", "a")
    assert (found.calls, found.call_list, found.reward) == (1, [], 1.0)
    store.ingest([call("a", at=NOW + 1)], {})
    assert len(store.episodes.get("-", "a").call_list) == 1


# the same views over what is archived, on DuckDB

VIEWS = ("calls", "messages")


def asked(store) -> list[tuple[list[str], list[list[object]]]]:
    """All that the two views say, which is all that a query can learn of them."""
    found = [store.db.sql(f"select * from {view}", 1000, 60.0) for view in VIEWS]
    return [(f.columns, sorted(f.rows, key=json.dumps)) for f in found]


def fill(store) -> None:
    """Three days, with a conversation that grows, texts that are awkward, and calls that failed."""
    for n in range(3):
        at, odd = NOW - n * DAY_S, 'a "quoted" \\ text, [1], {"role": "x"}, \u2028 é \x01'
        one = call(f"a{n}", at=at, messages=["x", odd], prompt=[1, 2])
        two = call(
            f"a{n}", at=at + 5, messages=["x", odd, one.parsed.choices[0].message, "y"], prompt=[1, 2, 7, 8, 9, 5]
        )
        store.ingest([one, two, call(f"b{n}", at=at + 1), reward(f"a{n}", 0.5)], {})


@pytest.fixture
def filled(opened, url, cold):
    if not url.startswith("duckdb"):
        pytest.skip("PostgreSQL's queries read no archive")
    store = opened(archive=str(cold))
    fill(store)
    return store


def test_queries_read_archived_days_as_if_they_had_stayed(filled, place):
    before = asked(filled)
    assert all(rows for _, rows in before)
    for day in filled.archive.days()[:2]:
        assert filled.archive.retire(day, place)
    assert len(filled.archive.days()) == 1
    assert asked(filled) == before
    for day in filled.archive.days():
        assert filled.archive.retire(day, place)
    assert asked(filled) == before


def test_a_call_is_seen_once_that_is_both_in_the_store_and_in_the_archive(filled, place):
    """A try to archive that was killed before its day was dropped; and a call that came afterwards."""
    before = asked(filled)
    day = filled.archive.days()[0]
    filled.archive.write(day, place)
    assert asked(filled) == before
    filled.archive.drop(day)
    filled.ingest([call("late", at=NOW - 2 * DAY_S)], {})
    found = filled.db.sql("select episode, count(*) from calls group by episode order by episode", 99, 60.0).rows
    assert found == [["a0", 2], ["a1", 2], ["a2", 2], ["b0", 1], ["b1", 1], ["b2", 1], ["late", 1]]


def test_no_query_finds_a_forgotten_episode_in_the_archive(filled, place):
    for day in filled.archive.days():
        filled.archive.retire(day, place)
    filled.forget([("-", "a1")], NOW)
    for e in filled.deletion.waiting():
        for name in e.archives:
            forget_archived(place, name, [(e.key, mark_of(e.episode))], "p1")
    for view in VIEWS:
        found = filled.db.sql(f"select distinct episode from {view} order by 1", 99, 60.0).rows
        assert found == [["a0"], ["a2"], ["b0"], ["b1"], ["b2"]]


def test_archives_of_before_lack_columns(filled, cold, place):
    for day in filled.archive.days():
        filled.archive.retire(day, place)
    for path in cold.iterdir():
        old = pq.read_table(path).select(ARCHIVE_SCHEMA.names[: ARCHIVE_SCHEMA.names.index("logprobs") + 1])
        pq.write_table(old, path)
    found = filled.db.sql("select episode, kind, temperature from calls where number = 1", 99, 60.0).rows
    assert sorted(found) == [[f"a{n}", "main", None] for n in range(3)]


def test_an_archive_that_cannot_be_read_is_named(filled, cold):
    cold.mkdir()
    (cold / "calls-2020-01-01.parquet").write_bytes(b"no parquet")
    with pytest.raises(QueryError, match="Parquet"):
        filled.db.sql("select count(*) from calls", 9, 60.0)
    assert filled.db.sql("select count(*) from episodes", 9, 60.0).rows == [[6]]


@pytest.mark.slow
def test_an_archive_in_an_object_store(opened, url, tmp_path, monkeypatch):
    """Against moto's S3 server, of an environment of its own (``S3_SERVER``: its program)."""
    program = os.environ.get("S3_SERVER")
    if not url.startswith("duckdb") or program is None:
        pytest.skip("S3_SERVER names no moto_server")
    port = free_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    setting = f"s3://cold/calls?region=us-east-1&scheme=http&endpoint_override=127.0.0.1:{port}"
    with process([program, "-H", "127.0.0.1", "-p", str(port)], tmp_path / "log"):
        wait_for(lambda: b"Running on" in (tmp_path / "log").read_bytes(), 60, 0.2, "the S3 server is there")
        made = f"from pyarrow import fs; fs.S3FileSystem(scheme='http', endpoint_override='127.0.0.1:{port}', allow_bucket_creation=True, region='us-east-1').create_dir('cold')"  # fmt: skip
        subprocess.run([sys.executable, "-c", made], check=True, timeout=60)
        store, place = opened(archive=setting), ArchivePlace(setting)
        fill(store)
        before = asked(store)
        for day in store.archive.days():
            assert store.archive.retire(day, place)
        assert asked(store) == before
        (name,) = {
            n for e in (store.forget([("-", "a1")], NOW), *store.deletion.waiting()) for n in getattr(e, "archives", ())
        }
        assert forget_archived(place, name, [("-", mark_of("a1"))], "p1") == 2
        assert store.db.sql("select count(*) from calls where episode = 'a1'", 9, 60.0).rows == [[0]]
    with pytest.raises(QueryError, match=re.escape("store.archive = 's3://cold")):
        store.db.sql("select count(*) from calls", 9, 60.0)


def test_the_command_that_status_tells_reads_archived_calls_of_any_store(store, cold, place):
    """PostgreSQL's queries do not: status says so, where it matters."""
    counts = store.statistics.funnel("judge", NOW)
    config = Config(store={"url": "postgresql:///x", "archive": str(cold), "keep_days": 30})
    (line,) = store_lines(counts, Surroundings(config, NOW))
    store.ingest([call("a"), call("b")], {})
    store.archive.write(store.archive.days()[0], place)
    (query,) = re.findall(r'duckdb -c "(.+)"', line.fix)
    assert duckdb.sql(query).fetchall() == [(2,)]
    config = Config(store={"archive": str(cold), "keep_days": 30})
    assert not [*store_lines(counts, Surroundings(config, NOW))], "DuckDB's do"
