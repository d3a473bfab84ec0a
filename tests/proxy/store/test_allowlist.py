"""Which names a query may use, by its parse tree."""

from __future__ import annotations

import pytest

from slipstream_proxy.store.allowlist import check_names
from slipstream_proxy.store.driver import QueryError

FINE = (
    "select * from episodes", "select e.id from EPISODES e join rewards r on r.episode = e.id", "table episodes", "from calls", "values (1)",
    "with a as (select * from calls) select * from a, range(3) r", "with recursive t(n) as (select 1 union all select n + 1 from t where n < 5) select * from t",
    "select * from main.episodes", "select unnest([1, 2])", "select count(*) filter (where reward > 0) from episodes group by all",
    "select (select max(ts) from calls) where exists (select 1 from adapters)", "summarize episodes", "select 'query(x)' as text",
)  # fmt: skip
REFUSED = (
    "select * from query('select 1')", "select * from query_table('t_meta')", "select * from t_meta", 'select * from "t_meta"',
    "select * from duckdb_settings()", "select * from duckdb_tables", "select * from information_schema.tables", "select * from pg_catalog.pg_class",
    "select * from sqlite_master", "show tables", "describe", "select 1; select 2", "drop view episodes", "select * from 'x.csv'", "select * from read_csv('x')",
    "select getenv('HOME')", "select * from other.episodes", "select * from (with t_x as (select 1) select * from t_x) a, t_x",
    "select (select count(*) from query('select 1'))", "select 1 union select * from query('select 1')", "with a as (select * from query('x')) select 1",
    "pivot episodes on task", "select * from json_execute_serialized_sql('x')", "selec", "select * from repeat_row(1, num_rows := 10)",
)  # fmt: skip


@pytest.mark.parametrize("query", FINE)
def test_the_views_and_what_a_query_defines_itself(query: str) -> None:
    check_names(query)


@pytest.mark.parametrize("query", REFUSED)
def test_anything_else_is_refused(query: str) -> None:
    with pytest.raises(QueryError) as e:
        check_names(query)
    assert "\n" not in str(e.value)
