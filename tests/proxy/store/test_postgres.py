"""The shared store: several proxies on one database."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest
from tests.support.records import NOW, at, call, group, reward, rules, want
from tests.support.store_writes import pin

from slipstream_proxy.log.records import mark_of
from slipstream_proxy.store import open_store
from slipstream_proxy.store.backends import postgres as pgcopy
from slipstream_proxy.store.backends.postgres import PostgresStore, translate
from slipstream_proxy.store.tables.driver import StoreError
from slipstream_proxy.store.values import EpisodeFilter, Position


@pytest.fixture
def two(postgres):
    """Two proxies' stores on one database."""
    with psycopg.connect(postgres, autocommit=True) as con:
        con.execute("DROP SCHEMA IF EXISTS fleet CASCADE; CREATE SCHEMA fleet")
    stores = [PostgresStore(f"{postgres}&options=-csearch_path%3Dfleet", rules(), instance=f"p{i}") for i in range(2)]
    yield stores
    for store in stores:
        store.close()


def test_one_fleet(two):
    a, b = two
    one = call("e", messages=["x"], prompt=[1, 2])
    a.ingest([one], at(0, 1))
    more = call("e", messages=["x", one.parsed.choices[0].message, "y"], prompt=[1, 2, 7, 8, 9, 4], at=NOW + 1)
    b.ingest([more], at(0, 5))
    a.ingest([call("e", at=NOW + 2, messages=[*more.parsed.messages, "z"], done=True), reward("e")], at(0, 2))
    found = b.episodes.get("-", "e", tokens=True)
    assert [c.number for c in found.call_list] == [0, 1, 2]
    assert found.call_list[2].messages == [*more.parsed.messages, "z"]
    assert (found.reward, found.state) == (1.0, "done")
    assert (a.positions(), b.positions()) == ({"data0": Position(0, 2)}, {"data0": Position(0, 5)})
    assert pin(a, "-", "n", "m", "m@1", "live", NOW) == pin(b, "-", "n", "m", "m@2", "live", NOW)


def test_a_pool_before_the_server_is_left_as_it_was(two, postgres, monkeypatch, tmp_path):
    """PgBouncer gives a session to another client after each transaction. What needs one of its own is refused."""
    with psycopg.connect(postgres) as con:
        assert not pgcopy.is_pooled(con)
    monkeypatch.setattr(pgcopy, "is_pooled", lambda _: True)
    store = PostgresStore(f"{postgres}&options=-csearch_path%3Dfleet", rules(), instance="p9")
    try:
        for n in range(12):
            store.ingest([call(f"e{n}"), reward(f"e{n}")], at(0, n + 1))
        with store.db.read() as tx:
            assert tx.all("SELECT name FROM pg_prepared_statements") == []
            ((check,),) = tx.all("SELECT setting FROM pg_settings WHERE name = 'client_connection_check_interval'")
        assert check == "0"
        for act in (lambda: store.db.rewrite(["t_groups"]), lambda: store.db.copy_to(tmp_path)):
            with pytest.raises(StoreError, match="needs a session of its own, .* name PostgreSQL itself"):
                act()
    finally:
        store.close()


def test_leases_are_never_handed_out_twice(two):
    two[0].ingest([r for i in range(24) for r in group(f"t{i}", start=NOW + i)], {})
    got, failed = [], []

    def lease(store):
        try:
            while (batch := store.batches.lease(want(max_groups=2), {}, 0, NOW + 99)) is not None:
                got.extend(set(batch.table["group"].to_pylist()))
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=lease, args=(s,)) for s in two * 3]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failed == []
    assert len(got) == len(set(got)) == 24


def test_both_ingest_at_once(two):
    failed = []

    def feed(store, name):
        try:
            for i in range(15):
                store.ingest(
                    [call(f"{name}{i}", done=True, key="k"), reward(f"{name}{i}", key="k"), call("shared", at=NOW + i)],
                    at(0, i + 1),
                )
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=feed, args=(s, n)) for s, n in zip(two, "ab", strict=True)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failed == []
    assert sorted(c.number for c in two[0].episodes.get("-", "shared").call_list) == list(range(30))
    assert two[1].statistics.counts(NOW)["groups"] == {"ready": 15}
    assert len(two[0].episodes.page(EpisodeFilter(limit=99)).episodes) == 31


def test_a_server_that_is_not_there():
    with pytest.raises(StoreError, match="cannot be reached"):
        open_store("postgresql://nobody@127.0.0.1:1/none", rules())


def test_another_kind_of_url():
    with pytest.raises(ValueError, match="duckdb:///path"):
        open_store("sqlite:///x", rules())


def test_translate():
    assert translate("SELECT '%' WHERE a = ?") == b"SELECT '%%' WHERE a = %s"


def test_writing_anew_keeps_nobody_waiting_behind_a_long_reader(two, postgres, monkeypatch):
    monkeypatch.setattr(pgcopy, "SWAP_TRIES", 2)
    a, b = two
    a.ingest([call("e", done=True), reward("e")], at(0, 1))
    a.forget([("-", "e")], NOW)
    with psycopg.connect(postgres) as reader:
        reader.execute("SELECT count(*) FROM fleet.t_rewards")  # its transaction stays open
        began = time.monotonic()
        with pytest.raises(StoreError, match="in use"):
            a.rewrite()
        assert time.monotonic() - began < 15.0
    assert [e.episode for e in a.deletion.waiting()] == [mark_of("e")], "nothing counts as done"
    assert [e.episode for e in a.rewrite()] == [mark_of("e")]
    with a.db.read() as tx:
        assert tx.all("SHOW lock_timeout") == [("0",)], "others wait as long as they like"


def test_the_server_ends_the_query_of_a_store_that_is_gone(two) -> None:
    """A killed control plane left its queries behind, and each start added one."""
    with two[0].db.read() as tx:
        assert tx.all("SHOW client_connection_check_interval") == [("5s",)]
