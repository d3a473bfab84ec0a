"""Users' queries: the views, and nothing else."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pytest
from tests.support.records import NOW, call, group

from slipstream_proxy.process.query import public
from slipstream_proxy.store.backends.queries import bare, check
from slipstream_proxy.store.tables.driver import QueryError


def test_the_views_answer(store):
    store.ingest([*group("t1"), call("x", adapter=None, untrainable="temperature 0")], {})
    got = store.sql(
        "select e.id, avg(r.value) as mean from episodes e join rewards r on r.episode = e.id group by e.id order by 1;",
        10,
        30,
    )
    assert (got.columns, got.rows, got.truncated) == (["id", "mean"], [["t1-0", 1.0], ["t1-1", 2.0]], False)
    got = store.sql("WITH c AS (SELECT * FROM calls) SELECT episode, untrainable_reason FROM c ORDER BY episode", 2, 30)
    assert (len(got.rows), got.truncated) == (2, True)
    assert store.sql("-- how many?\nselect count(*) from adapters", 5, 30).rows == [[0]]
    assert store.sql("select 'drop table t_calls; -- pg_sleep'", 5, 30).rows == [["drop table t_calls; -- pg_sleep"]]


REFUSED = (
        "select 1; select 2", "delete from t_episodes", "drop table t_episodes", "update t_episodes set id = 'x'", "", "selec 1",
        "insert into t_early values ('a', 1)", "create table x (a int)", "set threads = 4", "attach 'x.db'", "checkpoint", "begin", "vacuum",
        "select * from t_calls_none", "select * from t_episodes", "with x as (delete from t_episodes returning *) select * from x",
        "select 1) as q; delete from t_episodes; select * from (select 1", "explain select 1", "call pragma_version()", "select 1 \0",
)  # fmt: skip


def test_anything_else_is_refused(store):
    store.ingest([call("kept")], {})
    for query in REFUSED:
        with pytest.raises(QueryError) as e:
            store.sql(query, 10, 30)
        assert "\n" not in str(e.value), query
    assert store.episodes.get("-", "kept") is not None


def test_no_file_can_be_read_or_written(store, tmp_path):
    store.ingest([call()], {})
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    out = tmp_path / "out.csv"
    for query in (
        f"select * from read_text('{secret}')", f"select * from read_csv('{secret}')", f"select * from '{secret}'", f"select * from glob('{tmp_path}/*')",
        f"copy (select 1) to '{out}'", f"copy episodes to '{out}'", f"export database '{tmp_path / 'x'}'", f"attach '{tmp_path / 'x.db'}'",
        f"select pg_read_file('{secret}')", f"select lo_import('{secret}')", f"select * from pg_ls_dir('{tmp_path}')",
        f"select 1 into outfile '{out}'", f"copy (select 1) to program 'touch {out}'", "load httpfs", "install httpfs",
        "select set_config('role', 'postgres', true)", "set enable_external_access = true", f"select * from query('select * from read_text(''{secret}'')')",
    ):  # fmt: skip
        with pytest.raises(QueryError):
            store.sql(query, 10, 30)
    assert sorted(p.name for p in tmp_path.iterdir() if "duckdb" not in p.name) == ["secret.csv"]


def test_a_long_query_is_stopped(store):
    store.ingest([call(f"e{i}") for i in range(300)], {})
    with pytest.raises(QueryError, match="stopped after"):
        store.sql(
            "select count(*) from calls a, calls b, calls c, calls d, calls e where a.ts + b.ts > c.ts + d.ts - e.ts",
            10,
            0.2,
        )
    assert store.sql("select count(*) from calls", 10, 30).rows == [[300]]


def test_check():
    assert check(" SELECT 1 ;; ") == "SELECT 1"
    assert check("/* a */ with x as (select 1) select * from x") != ""
    for bad in ("", "  ;", "/* select 1", "pragma version", "selection"):
        with pytest.raises(QueryError):
            check(bad)


def test_nothing_hides_behind_quotes():
    for hidden in (
        "-- it's\n {}('x')",
        "\"it's\" {}('x')",
        "E'\\'' {}('x')",
        "$$'$$ {}('x')",
        "/* ' */ {}('x')",
        "'a' {}('b')",
    ):
        assert "pg_read_file" in bare(hidden.format("pg_read_file"))


def test_texts_are_no_reason_to_refuse():
    assert check("select 't_episodes' -- t_calls_none") == "select 't_episodes' -- t_calls_none"


def test_public():
    assert public(Decimal("1.5")) == 1.5
    assert public(b"\x01\xff") == "01ff"
    assert public([1, (None, float("nan"))]) == [1, [None, None]]
    assert public({1: datetime.date(2020, 1, 2)}) == {"1": "2020-01-02"}
    assert public(float("inf")) is None
    assert public(object) == str(object)
    assert (public(True), public(NOW), public("x")) == (True, NOW, "x")
