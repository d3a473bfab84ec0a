"""The embedded store: its file broken, locked, hurt in mid-flight, used from many threads."""

from __future__ import annotations

import logging
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.support.records import NOW, at, call, done, group, mutation, reward, rules, want
from tests.support.store_writes import pin

from slipstream_proxy.log.records import mark_of
from slipstream_proxy.store import open_store
from slipstream_proxy.store.backends import duckfile
from slipstream_proxy.store.backends.duckdb import DuckStore
from slipstream_proxy.store.store import Store
from slipstream_proxy.store.tables.driver import StoreError
from slipstream_proxy.store.values import EpisodeFilter, Position


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.duckdb"


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A store's file and log as a killed process leaves them: 8 transactions of an episode of two calls each."""
    folder = tmp_path_factory.mktemp("killed")
    store = DuckStore(folder / "source.duckdb", rules())
    for i in range(8):
        store.ingest([call(f"e{i}"), call(f"e{i}", done=True), reward(f"e{i}")], at(0, i + 1))
    shutil.copy(folder / "source.duckdb", folder / "a.duckdb")
    shutil.copy(folder / "source.duckdb.wal", folder / "a.duckdb.wal")
    store.close()
    return folder / "a.duckdb"


def hurt(log, how, share):
    data = bytearray(log.read_bytes())
    place = int(len(data) * share)
    match how:
        case "torn":
            del data[place:]
        case "zeroed":
            data[place : place + 512] = bytes(min(512, len(data) - place))
        case "flipped":
            data[place] ^= 4
    log.write_bytes(data)


@pytest.mark.parametrize("how", ["torn", "zeroed", "flipped"])
@pytest.mark.parametrize("share", [0.01, 0.6, 0.999])
def test_a_broken_log_never_keeps_it_from_opening(killed, path, how, share, caplog):
    shutil.copy(killed, path)
    log = shutil.copy(f"{killed}.wal", f"{path}.wal")
    hurt(Path(log), how, share)
    with caplog.at_level(logging.CRITICAL):
        store = DuckStore(path, rules())
    found = store.positions()
    count = found["data0"].offset if found else 0
    episodes = store.episodes.page(EpisodeFilter(limit=50)).episodes
    assert len(episodes) == count, "what is there goes with the positions"
    assert all(len(store.episodes.get("-", e.id).call_list) == 2 for e in episodes)
    aside = sorted(p.name for p in path.parent.glob("a.duckdb.broken-*"))
    if store.db.rebuilt:
        assert found == {}
        assert [name.endswith(".wal") for name in aside] == [True]
        assert "set aside" in caplog.text
    else:
        assert aside == []
    store.ingest([call("new")], at(1, 1))
    store.close()
    assert DuckStore(path, rules()).episodes.get("-", "new") is not None


@pytest.mark.parametrize("how", ["torn", "zeroed", "flipped"])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.9])
def test_a_broken_log_costs_nothing_of_the_last_snapshot(path, tmp_path, how, share):
    """The spool's segments before a snapshot are gone: what it holds must not be set aside with the log."""
    source = DuckStore(tmp_path / "source.duckdb", rules())
    source.ingest([call(f"e{i}") for i in range(4)], at(0, 4))
    source.snapshot()
    for i in range(4, 8):
        source.ingest([call(f"e{i}")], at(0, i + 1))
    shutil.copy(tmp_path / "source.duckdb", path)
    shutil.copy(tmp_path / "source.duckdb.wal", f"{path}.wal")
    source.close()
    hurt(Path(f"{path}.wal"), how, share)
    store = DuckStore(path, rules())
    count = store.positions()["data0"].offset
    assert count >= 4
    assert len(store.episodes.page(EpisodeFilter(limit=50)).episodes) == count
    store.close()


def test_a_file_that_is_no_database(path):
    path.write_bytes(b"not a database at all" * 1000)
    store = DuckStore(path, rules())
    assert store.db.rebuilt
    store.close()


def test_a_file_that_another_process_has_open_stays(path):
    code = f"import duckdb, sys; c = duckdb.connect({str(path)!r}); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match="cannot be opened"):
            DuckStore(path, rules())
        other.communicate("")
    store = DuckStore(path, rules())
    assert not store.db.rebuilt
    store.close()


def test_a_schema_of_the_future_is_refused_and_stays(path):
    DuckStore(path, rules()).close()
    with duckdb.connect(str(path)) as con:
        con.execute("UPDATE t_meta SET value = '999' WHERE name = 'schema'")
    with pytest.raises(StoreError, match="999"):
        DuckStore(path, rules())
    assert list(path.parent.glob("*broken*")) == []


def test_a_store_that_lost_its_file_handle_opens_it_again(path):
    store = DuckStore(path, rules())
    store.ingest([call("a")], at(0, 1))
    store.db._close()  # type: ignore[attr-defined]
    store.ingest([call("b")], at(0, 2))
    assert [e.id for e in store.episodes.page(EpisodeFilter()).episodes] == ["b", "a"]
    assert store.sql("select count(*) from calls", 5, 30).rows == [[2]]
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.ingest([call("c")], at(0, 3))
    store.close()


def test_deleted_text_and_tokens_are_nowhere_in_the_files(path):
    secret = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=400))
    tokens = [random.Random(i).randrange(150_000) for i in range(300)]
    blob = np.asarray(tokens, "<i4").tobytes()[400:440]
    store = DuckStore(path, rules())
    said = [{"role": "user", "content": secret}]
    store.ingest(
        [
            call("gone", messages=said, prompt=tokens),
            reward("gone", reason=secret),
            *(call(f"e{i}") for i in range(50)),
        ],
        {},
    )
    store.snapshot()

    def there():
        data = b"".join(p.read_bytes() for p in path.parent.iterdir())
        return any(secret[i : i + 24].encode() in data for i in range(0, 376, 24)), blob in data

    assert there() == (True, True), "the test would see it"
    store.forget([("-", "gone")], NOW)
    store.deletion.erased(store.rewrite())
    assert store.deletion.waiting() == []
    assert there() == (False, False)
    assert len(store.episodes.page(EpisodeFilter(limit=99)).episodes) == 50
    store.ingest(
        [call("gone2", messages=said, prompt=tokens), mutation("delete", {"key": "-", "episode": "gone2"})], {}
    )
    assert [e.episode for e in store.rewrite()] == [mark_of("gone2")]
    assert there() == (False, False)
    store.close()


def test_a_statement_is_parsed_once_and_not_all_are_kept(monkeypatch):
    monkeypatch.setattr(duckfile, "PARSED_STATEMENTS", 3)
    monkeypatch.setattr(duckfile, "_parsed", {})
    with duckdb.connect() as con:
        tx = duckfile.DuckTx(con)
        tx.all("CREATE TABLE t (a INTEGER, b TEXT); CREATE INDEX i ON t (a)")
        for n in range(5):
            assert tx.run("INSERT INTO t VALUES (?, ?)", (n, "x")) == 1
            assert tx.all("SELECT a FROM t WHERE a IN (SELECT unnest(?))", [[n, 7]]) == [(n,)]
        once = duckfile._parsed["INSERT INTO t VALUES (?, ?)"]
        for n in range(5):
            tx.all(f"SELECT count(*) + {n} FROM t WHERE b = ?", ("x",))
            assert len(duckfile._parsed) <= 3
        assert duckfile.parsed(con, "INSERT INTO t VALUES (?, ?)") is not once
        many = f"SELECT a FROM t WHERE a IN ({', '.join('?' * 100)})"
        assert tx.all(many, [*range(100)]) and many not in duckfile._parsed
        with pytest.raises(duckdb.Error, match="syntax error"):
            tx.all("SELECT SELECT")
        con.execute("ALTER TABLE t ADD COLUMN c INTEGER DEFAULT 3")
        assert len(tx.all("SELECT * FROM t")[0]) == 3


def test_many_threads_at_once(path):
    store = DuckStore(path, rules())
    store.ingest([r for i in range(20) for r in group(f"t{i}")], {})
    failed, leased, stop = [], [], threading.Event()

    def run(work):
        try:
            for _ in range(60):
                if stop.is_set():
                    break
                work()
        except BaseException as e:
            failed.append(e)

    def lease():
        got = store.batches.lease(want(max_groups=1), {}, 0, NOW + 50)
        if got is not None:
            leased.append(got.table["group"][0].as_py())

    readers = [
        lambda: store.episodes.page(EpisodeFilter(limit=5)), lambda: store.statistics.counts(NOW), lambda: store.episodes.get("-", "t1-0", tokens=True),
        lambda: store.sql("select count(*) from calls", 5, 30), lease, lease,
    ]  # fmt: skip
    threads = [threading.Thread(target=run, args=(r,)) for r in readers]
    for t in threads:
        t.start()
    for i in range(8):
        store.ingest([call(f"x{i}", done=True), call(f"gone{i}")], at(0, i))
        if i % 4 == 0:
            store.forget([("-", f"gone{i}")], NOW)
        store.sweep(NOW)
    stop.set()
    for t in threads:
        t.join()
    assert failed == []
    assert len(leased) == len(set(leased)), "no group is handed out twice"
    assert len(store.episodes.page(EpisodeFilter(limit=99)).episodes) == 40 + 8 + 6
    store.close()


EVENTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["call", "call", "call", "reward", "done", "delete"])),
    min_size=1,
    max_size=10,
)


def records(events):
    made, prompt = [], [1, 2]
    for n, (episode, what) in enumerate(events):
        now = NOW + n
        if what == "call":
            made.append(call(episode, at=now, prompt=list(prompt), messages=[{"n": i} for i in range(n)]))
            prompt += [7, 8, 9, n]
        elif what == "reward":
            made.append(reward(episode, n, at=now))  # type: ignore[arg-type]
        else:
            made.append(
                done(episode, at=now)  # type: ignore[arg-type]
                if what == "done"
                else mutation("delete", {"key": "-", "episode": episode}, at=now)
            )
    return made


def everything(store: Store):
    found = [e for batch in store.episodes.export(EpisodeFilter()) for e in batch]
    return sorted((e.model_dump_json() for e in found)), store.statistics.counts(NOW)["groups"]


@settings(
    max_examples=5, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(EVENTS, st.data())
def test_whatever_is_read_again_counts_once(tmp_path_factory, events, data):
    """A crash is a batch that was not committed, or an ingester that begins again at a position before what is stored."""
    items = records(events)
    folder = tmp_path_factory.mktemp("replay")
    plain, crashed = (open_store(f"duckdb:///{folder}/{n}.duckdb", rules()) for n in ("plain", "crashed"))
    for i, item in enumerate(items):
        plain.ingest([item], at(0, i + 1))
    position = 0
    while position < len(items):
        begin = data.draw(st.integers(max(0, position - 3), position))
        end = data.draw(st.integers(position + 1, len(items)))
        batch = items[begin:end]
        if data.draw(st.booleans()):
            with pytest.raises(ValueError):
                crashed.ingest([*batch, mutation("nonsense", {})], at(0, end))
            assert crashed.positions().get("data0", Position(0, 0)).offset == position
            if data.draw(st.booleans()):
                crashed.close()
                crashed = open_store(f"duckdb:///{folder}/crashed.duckdb", rules())
        crashed.ingest(batch, at(0, end))
        position = end
    assert everything(crashed) == everything(plain)
    plain.close()
    crashed.close()
    shutil.rmtree(folder)


def test_a_snapshot_is_read_back(path, monkeypatch):
    store = open_store(f"duckdb:///{path}", rules())
    store.ingest([call("a"), call("b", at=NOW + 90_000)], at(0, 10))
    store.snapshot()
    store.ingest([call("c", at=NOW + 90_100)], at(0, 20))
    settle = store.db.settle
    monkeypatch.setattr(store.db, "settle", lambda: (settle(), _lose(path, store)))
    with pytest.raises(StoreError, match="the snapshot's"):
        store.snapshot()
    store.close()


def _lose(path, store):
    """A disk that says it has written and has not."""
    with store.db.write() as tx:
        tx.run("DELETE FROM t_calls_20270116 WHERE ts > ?", (NOW + 90_050,))


def test_a_snapshot_that_cannot_be_read_is_none(path):
    store = open_store(f"duckdb:///{path}", rules())
    store.ingest([call(f"e{i}", messages=[{"role": "user", "content": f"{i} " * 4000}]) for i in range(60)], at(0, 10))
    store.db.settle()
    data = bytearray(path.read_bytes())
    for place in range(16384 + 4096, len(data), 65536):
        data[place] ^= 0x55
    path.write_bytes(data)
    with pytest.raises(Exception, match=r"(?i)corrupt|checksum|invalid|error"):
        store.snapshot()


def test_readers_that_stay_put_a_snapshot_off(path, monkeypatch):
    monkeypatch.setattr("slipstream_proxy.store.backends.duckdb.REREAD_PATIENCE", 0.05)
    store = open_store(f"duckdb:///{path}", rules())
    store.ingest([call("a")], at(0, 10))
    reading, end = threading.Event(), threading.Event()

    def read():
        with store.db.read():
            reading.set()
            end.wait(60)

    reader = threading.Thread(target=read)
    reader.start()
    reading.wait(60)
    with pytest.raises(StoreError, match="all the time"):
        store.snapshot()
    end.set()
    reader.join()
    store.snapshot()
    assert store.episodes.get("-", "a") is not None
    store.close()


def test_its_stand_is_another_one_after_each_change_alone(path):
    store = DuckStore(path, rules())
    stands = [store.db.stand()]

    def another() -> bool:
        stands.append(store.db.stand())
        return stands[-1] not in stands[:-1]

    store.ingest([call("a")], {})
    assert another()
    store.episodes.get("-", "a")
    store.sweep(NOW + 1)
    store.sweep(NOW + 2)
    another()
    store.sweep(NOW + 3)
    with pytest.raises(ValueError, match="unknown kind"):
        store.ingest([call("b"), mutation("nonsense", {})], {})
    assert not another()
    pin(store, "-", "b", "m", "m@1", "live", NOW)
    assert another()
    store.forget([("-", "a")], NOW)
    assert another()
    store.rewrite()
    assert another(), "what was remembered of the old file is not believed"
    store.close()
