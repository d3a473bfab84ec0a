"""A file is written anew while others read and write: nothing is lost, and nothing forgotten is left."""

from __future__ import annotations

import threading
import time

import duckdb
import pytest
from tests.support.records import NOW, at, call, group, reward, rules
from tests.support.store_writes import pin

from slipstream_proxy.log.records import mark_of
from slipstream_proxy.store.backends import duckfile
from slipstream_proxy.store.backends.duckdb import DuckDriver, DuckStore
from slipstream_proxy.store.backends.duckfile import Write, WriteLog
from slipstream_proxy.store.tables.driver import StoreError
from slipstream_proxy.store.values import EpisodeFilter


@pytest.fixture
def store(tmp_path):
    made = DuckStore(tmp_path / "s.duckdb", rules())
    yield made
    made.close()


def dump(store):
    with store.db.read() as tx:
        tables = [t for (t,) in tx.all("SELECT table_name FROM duckdb_tables() WHERE NOT internal ORDER BY 1")]
        return {t: sorted(map(repr, tx.all(f"SELECT * FROM {t}"))) for t in tables}


def test_nothing_is_forgotten_but_what_was_asked(store, tmp_path):
    path = tmp_path / "s.duckdb"
    store.ingest([*group("t1", 4), call("gone", messages=[{"role": "user", "content": "SECRET" * 50}])], at(0, 1))
    store.db.settle()
    assert b"SECRETSECRET" in path.read_bytes()
    store.forget([("-", "gone")], NOW)
    before, counts = dump(store), store.statistics.counts(NOW)
    assert [e.episode for e in store.rewrite()] == [mark_of("gone")]
    after = dump(store)
    assert before.pop("t_tallies") != after.pop("t_tallies"), (
        "it is summed up, so that no label of a forgotten run stays"
    )
    assert (after, store.statistics.counts(NOW)) == (before, counts)
    assert b"SECRETSECRET" not in path.read_bytes()
    with store.db.read() as tx:
        assert tx.all("SELECT count(*) FROM duckdb_indexes()")[0][0] > 3, "it has its indexes"
        assert tx.all("SELECT count(*) FROM calls")[0][0] == 4, "and its views"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.duckdb"]
    store.deletion.erased(store.deletion.waiting())
    store.ingest([call("t1-0"), call("new")], at(0, 2))
    assert store.positions() == at(0, 2)


def test_what_is_written_meanwhile_is_in_the_new_file(store, monkeypatch):
    """Calls, rewards, deletions, a new day's table, a pin: every kind of change, in the middle of the copy."""
    store.ingest([r for n in range(20) for r in group(f"t{n}", 4)], at(0, 1))
    monkeypatch.setattr(duckfile, "ROWS_PER_COPY", 16)
    monkeypatch.setattr(duckfile, "REST_PER_COPY_S", 3.0)
    copying, failed = threading.Event(), []
    copied = duckfile._copy_tables

    def tell(*args):
        copying.set()
        copied(*args)

    monkeypatch.setattr(duckfile, "_copy_tables", tell)

    def rewrite():
        try:
            store.rewrite()
        except Exception as e:
            failed.append(e)

    thread = threading.Thread(target=rewrite)
    thread.start()
    copying.wait(20)
    rounds = 0
    while thread.is_alive() and rounds < 12:
        day = NOW + 86_400 * (rounds % 3)
        store.ingest([call(f"n{rounds}", at=day, done=True), reward(f"n{rounds}", 0.5)], at(0, 2 + rounds))
        pin(store, "-", f"p{rounds}", "m", "m@1", "live", NOW)
        store.forget([("-", f"t{rounds % 20}-0")], NOW)
        assert store.episodes.get("-", f"n{rounds}").reward == 0.5
        rounds += 1
    thread.join()
    assert failed == [] and rounds > 3
    assert store.positions() == at(0, 1 + rounds)
    names = {e.id for e in store.episodes.page(EpisodeFilter(limit=1000)).episodes}
    assert names == {f"n{n}" for n in range(rounds)} | {f"t{n}-{i}" for n in range(20) for i in range(4)} - {
        f"t{n % 20}-0" for n in range(rounds)
    }
    with store.db.read() as tx:
        assert {k: t.n for k, t in store.tallies._sums(tx).items()} == {
            k: t.n for k, t in store.tallies.counted(tx).items()
        }
        assert tx.all("SELECT count(*) FROM t_pins WHERE adapter = 'm@1'") == [(rounds,)]


def test_a_failure_leaves_the_old_file(store, tmp_path, monkeypatch):
    store.ingest(group("t1", 4), at(0, 1))
    before = dump(store)

    def fail(*_):
        raise StoreError("no room")

    for step in ("_copy_tables", "_catch_up", "_take_place"):
        with monkeypatch.context() as m:
            m.setattr(duckfile, step, fail)
            with pytest.raises(StoreError, match="no room"):
                store.rewrite()
        assert dump(store) == before
        pin(store, "-", step, "m", "m@1", "live", NOW)
        before = dump(store)
    assert not list(tmp_path.glob("*.rewrite*"))
    store.rewrite()
    assert dump(store) == before


def test_a_difference_keeps_the_old_file(store, monkeypatch):
    """Should a write be missing in the new file, whyever, it does not take the old one's place."""
    store.ingest(group("t1", 2), at(0, 1))
    catch_up = duckfile._catch_up

    def forgetful(to, written):
        pin(store, "-", "late", "m", "m@1", "live", NOW)
        written.take()
        catch_up(to, written)

    monkeypatch.setattr(duckfile, "_catch_up", forgetful)
    with pytest.raises(StoreError, match="does not hold"):
        store.rewrite()
    assert store.pins.open()["m@1"] == 1


def test_too_much_at_once_gives_up():
    log = WriteLog()
    log.add([Write("insert", ("t",), [()] * duckfile.MOST_ROWS)])
    assert len(log) == 1 and not log.over
    log.add([Write("run", ("DELETE", ()))])
    assert log.over and log.take() == []
    log.add([Write("run", ("DELETE", ()))])
    assert len(log) == 0


def test_a_reader_is_let_go_on(store, monkeypatch):
    """The swap waits for who reads, and nobody waits long for the swap."""
    monkeypatch.setattr(duckfile, "SWAP_PATIENCE", 0.05)
    store.ingest(group("t1", 2), at(0, 1))
    with store.db.read() as tx:
        thread = threading.Thread(target=store.rewrite)
        thread.start()
        time.sleep(0.6)
        pinning = threading.Thread(target=pin, args=(store, "-", "e", "m", "m@1", "live", NOW))
        pinning.start()
        pinning.join(10)
        assert not pinning.is_alive()
        assert tx.all("SELECT count(*) FROM t_episodes") == [(2,)]
        assert thread.is_alive()
    thread.join(30)
    assert not thread.is_alive() and store.pins.open()["m@1"] == 1


def test_closing_gives_the_copy_up(tmp_path, monkeypatch):
    store = DuckStore(tmp_path / "s.duckdb", rules())
    store.ingest([r for n in range(20) for r in group(f"t{n}", 4)], at(0, 1))
    monkeypatch.setattr(duckfile, "ROWS_PER_COPY", 1)
    monkeypatch.setattr(duckfile, "REST_PER_COPY_S", 20.0)
    failed = []

    def rewrite():
        try:
            store.rewrite()
        except StoreError as e:
            failed.append(e)

    thread = threading.Thread(target=rewrite)
    thread.start()
    time.sleep(0.3)
    store.close()
    thread.join(30)
    assert len(failed) == 1
    again = DuckStore(tmp_path / "s.duckdb", rules())
    assert len(again.episodes.page(EpisodeFilter(limit=100)).episodes) == 80
    again.close()


def closes(driver: DuckDriver) -> bool:
    """Whether the file can be closed and opened again: this waits for all who read it."""
    thread = threading.Thread(target=driver.put_file_back, daemon=True)
    thread.start()
    thread.join(10)
    return not thread.is_alive()


def test_a_new_file_that_cannot_be_made_leaves_no_reader_behind(store):
    """On a full disk, for one. Else the file could never be closed again, and whoever tried to would hold up all writers."""
    store.ingest(group("t", 4), at(0, 1))
    with pytest.raises(duckdb.Error):
        duckfile.copy_anew(store.db, {"memory_limit": "no size"})
    assert closes(store.db)
    store.ingest([call("new")], at(0, 2))


def test_a_copy_that_cannot_begin_leaves_no_reader_behind(tmp_path):
    driver = DuckDriver(tmp_path / "s.duckdb")  # without a table, as after a log that was broken from its first byte on
    with pytest.raises(duckdb.Error):
        driver.begin_copy()
    assert closes(driver)
    driver.close()
