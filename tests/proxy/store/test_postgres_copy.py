"""PostgreSQL's tables rewritten beside reads and writes: what was deleted is in no page, nobody waits, nothing is lost."""

from __future__ import annotations

import itertools
import random
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from tests.support.records import NOW, at, call, mutation, reward, rules
from tests.support.store_writes import pin

from slipstream.contract import GroupLeaseIn
from slipstream_proxy.log.records import mark_of
from slipstream_proxy.store.backends import postgres as pgcopy
from slipstream_proxy.store.backends.postgres import PostgresStore
from slipstream_proxy.store.tables.driver import StoreError
from slipstream_proxy.store.values import EpisodeFilter

_numbers = itertools.count()


@pytest.fixture
def url(postgres) -> str:
    name = f"copied{next(_numbers)}"
    with psycopg.connect(postgres, autocommit=True) as con:
        con.execute(f"CREATE SCHEMA {name}")
    return f"{postgres}&options=-csearch_path%3D{name}"


@pytest.fixture
def store(url):
    made = PostgresStore(url, rules())
    yield made
    made.close()


def noise(seed: int, size: int) -> str:
    """Text that no compression makes shorter."""
    return random.Random(seed).randbytes(size // 2).hex()


def shape(store) -> tuple[list[tuple], list[tuple]]:
    """Columns and indexes, by name."""
    with store.db.read() as tx:
        sql = """SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns
            WHERE table_schema = current_schema() ORDER BY 1, ordinal_position"""
        columns = tx.all(sql)
        return columns, tx.all(
            "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema() ORDER BY 1, 2"
        )


def left_over(store) -> list[str]:
    with store.db.read() as tx:
        sql = """SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relname LIKE '%\\_\\_%'
            UNION SELECT proname FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
            UNION SELECT tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
            WHERE c.relnamespace = current_schema()::regnamespace AND NOT tgisinternal"""
        return [name for (name,) in tx.all(sql)]


def test_what_is_forgotten_is_in_no_page(store, postgres):
    def checkpoint() -> None:
        with psycopg.connect(postgres, autocommit=True) as con:
            con.execute("CHECKPOINT")

    checkpoint()
    began = time.time() - 1.0  # what was written before holds none of it
    secrets = {"a": noise(1, 600), "b": noise(2, 30_000)}
    for name, text in {**secrets, "c": noise(3, 30_000)}.items():
        store.ingest([call(name, messages=[{"role": "user", "content": text}], done=True), reward(name)], {})
    folder = Path(re.search(r"host=([^&]+)", postgres)[1]) / "data" / "base"

    def pieces(text: str) -> int:
        checkpoint()
        parts = [text[i : i + 40].encode() for i in range(0, len(text) - 40, 280)]
        written = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_mtime >= began]
        files = [path.read_bytes() for path in written]
        return sum(any(part in data for data in files) for part in parts)

    before = shape(store)
    assert all(pieces(text) for text in secrets.values())
    store.forget([("-", "a"), ("-", "b")], NOW)
    assert [e.episode for e in store.rewrite()] == [mark_of("a"), mark_of("b")]
    assert [pieces(text) for text in secrets.values()] == [0, 0]
    assert pieces(noise(3, 30_000)), "the others' text is there"
    assert shape(store) == before
    assert left_over(store) == []


class Others(threading.Thread):
    """Does something again and again. ``slowest``: seconds of one time."""

    def __init__(self, what: Callable[[int], object]) -> None:
        super().__init__(daemon=True)
        self.what, self.slowest, self.done, self.over = what, 0.0, 0, False
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.over:
                began = time.monotonic()
                self.what(self.done)
                self.slowest = max(self.slowest, time.monotonic() - began)
                self.done += 1
        except BaseException as e:
            self.failed = e


@pytest.mark.slow
def test_others_go_on_meanwhile_and_nothing_of_theirs_is_lost(url, store, monkeypatch):
    """Making the copies takes six seconds. Whoever had to wait for that would take longer than two."""
    other = PostgresStore(url, rules(), instance="other")
    store.ingest([call(f"old{n}", done=True) for n in range(300)], at(0, 1))
    store.ingest([call("gone", messages=["SECRET"], done=True), reward("gone")], at(0, 2))
    expected: dict[str, list[str]] = {}
    make = pgcopy._make_indexes

    def slowly(one, copied):
        time.sleep(2.0)
        return make(one, copied)

    monkeypatch.setattr(pgcopy, "_make_indexes", slowly)

    def write(n: int) -> None:
        name = f"new{n // 3}"
        one = call(name, at=NOW + n / 100, done=n % 3 == 2)
        expected.setdefault(name, []).append(one.head.id)
        other.ingest([one, reward(f"old{n % 300}", n / 1000, at=NOW + n)], at(1, n + 1))

    def read(n: int) -> None:
        found = store.episodes.get("-", f"old{n % 300}")
        assert len(found.call_list) == 1, "a reader sees each table whole"
        assert len(store.episodes.page(EpisodeFilter(limit=5)).episodes) == 5

    def query(n: int) -> None:
        with store.db.read() as tx:  # what `sql` reads, without the process that it starts
            assert tx.all("SELECT count(*) FROM calls")[0][0] >= 300
        time.sleep(0.05)

    others = {
        "pins": Others(lambda n: pin(store, "-", f"p{n}", "m", "m@1", "live", NOW)),
        "writes": Others(write),
        "reads": Others(read),
        "leases": Others(lambda n: other.judging.lease(GroupLeaseIn(worker="j", names=["judge"]), NOW)),
        "sweeps": Others(lambda n: (store.sweep(NOW + n), time.sleep(0.05))),
        "queries": Others(query),
    }
    for one in others.values():
        one.start()
    time.sleep(0.3)
    store.forget([("-", "gone")], NOW)
    assert [e.episode for e in store.rewrite()] == [mark_of("gone")]
    time.sleep(0.3)
    for one in others.values():
        one.over = True
    for one in others.values():
        one.join()
    assert {name: one.failed for name, one in others.items()} == dict.fromkeys(others)
    assert max(one.slowest for one in others.values()) < 2.0, {name: one.slowest for name, one in others.items()}
    assert all(one.done >= 10 for one in others.values()), {name: one.done for name, one in others.items()}
    for name, ids in expected.items():
        assert other.episodes.call_ids("-", name) == set(ids)
        assert other.episodes.get("-", name).calls == len(ids)
    count = sum(len(ids) for ids in expected.values())
    rows = store.sql("SELECT count(*), count(DISTINCT id) FROM calls", 10, 10.0).rows
    assert rows == [[300 + count] * 2]
    assert store.sql("SELECT count(*) FROM rewards", 10, 10.0).rows == [[count]]
    with store.db.read() as tx:
        assert store.tallies._sums(tx).keys() == store.tallies.counted(tx).keys()
    assert left_over(store) == []
    other.close()


def test_who_still_reads_an_older_state_is_waited_for(url, store, monkeypatch):
    monkeypatch.setattr(pgcopy, "SWAP_TRIES", 2)
    store.ingest([call("a", done=True), call("b", done=True)], {})
    store.forget([("-", "a")], NOW)
    with psycopg.connect(url) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT count(*) FROM t_meta")  # its snapshot is taken; it has none of the other tables yet
        with pytest.raises(StoreError, match="in use all the time"):
            store.rewrite()
        assert left_over(store) == []
        assert reader.execute("SELECT count(*) FROM calls").fetchall() == [(1,)]
    assert [e.episode for e in store.rewrite()] == [mark_of("a")]
    assert store.sql("SELECT episode FROM calls", 10, 10.0).rows == [["b"]]


def test_what_was_cut_off_is_cleared_and_done_again(store, monkeypatch):
    store.ingest([call("a", done=True), call("b", done=True)], {})
    store.forget([("-", "a")], NOW)
    before = shape(store)

    def killed(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as m:
        m.setattr(pgcopy, "_check", killed)
        m.setattr(pgcopy, "clear", lambda *_: None)  # there is nothing yet, and the end does not come
        with pytest.raises(RuntimeError):
            store.rewrite()
    assert left_over(store), "a kill leaves it"
    store.ingest([call("c", done=True), mutation("delete", {"key": "-", "episode": "b"})], {})
    assert {e.episode for e in store.rewrite()} == {mark_of("a"), mark_of("b")}
    assert left_over(store) == []
    assert shape(store) == before
    assert store.sql("SELECT episode FROM calls", 10, 10.0).rows == [["c"]]


def test_a_copy_that_differs_keeps_the_old_table(store, monkeypatch):
    store.ingest([call("a", done=True), call("b", done=True)], {})
    store.forget([("-", "a")], NOW)
    make = pgcopy._make_indexes

    def spoiled(one, copied):
        one.execute(copied.sql("DELETE FROM {new}"))
        return make(one, copied)

    with monkeypatch.context() as m:
        m.setattr(pgcopy, "_make_indexes", spoiled)
        with pytest.raises(StoreError, match="differs in"):
            store.rewrite()
    assert store.episodes.get("-", "b").calls == 1
    assert left_over(store) == []


def test_one_proxy_at_a_time(url, store):
    store.ingest([call("a", done=True)], {})
    store.forget([("-", "a")], NOW)
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(%s)", (pgcopy.REWRITING_LOCK_ID,))
        with pytest.raises(StoreError, match="another proxy"):
            store.rewrite()
    assert [e.episode for e in store.rewrite()] == [mark_of("a")]


def test_it_is_given_up(store, url, monkeypatch):
    """Somebody reads an older state for as long as it lasts, so that no copy takes a table's place."""
    monkeypatch.setattr(pgcopy, "READERS_WAIT", 0.1)
    for name in ("a", "b"):
        store.ingest([call(name, done=True), reward(name)], {})
    store.forget([("-", "a")], NOW)
    before, failed = shape(store), []

    def rewrite():
        try:
            store.rewrite()
        except StoreError as e:
            failed.append(e)

    with psycopg.connect(url) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM t_episodes")
        thread = threading.Thread(target=rewrite)
        thread.start()
        time.sleep(1.0)
        began = time.monotonic()
        store.db.give_up()
        thread.join(30)
        assert time.monotonic() - began < 10 and len(failed) == 1
        with pytest.raises(StoreError):
            store.rewrite()
    assert (shape(store), left_over(store)) == (before, [])
    again = PostgresStore(url, rules())
    assert [e.episode for e in again.rewrite()] == [mark_of("a")]
    assert again.episodes.get("-", "b").calls == 1
    again.close()
