"""Which names a query may use, by its parse tree."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from slipstream_proxy.store.backends.queries import check_names, parse
from slipstream_proxy.store.tables.driver import QueryError

FINE = (
    "select * from episodes", "select e.id from EPISODES e join rewards r on r.episode = e.id", "table episodes", "from calls", "values (1)",
    "with a as (select * from calls) select * from a, range(3) r", "with recursive t(n) as (select 1 union all select n + 1 from t where n < 5) select * from t",
    "select * from main.episodes", "select unnest([1, 2])", "select count(*) filter (where reward > 0) from episodes group by all",
    "with a as materialized (select * from calls), b as (select * from a) select * from b join a using (id)", "select percentile_cont(0.5) within group (order by reward) from episodes",
    "select rank() over (order by reward), lag(reward, 1) over (partition by task order by started), sum(calls) over () from episodes",
    "select to_char(now(), 'YYYY'), date_trunc('day', to_timestamp(ts)), jsonb_array_length(cast(messages as jsonb)), coalesce(nullif(task, ''), 'x') || 'y' from calls",
    "select cast(reward as int), task ilike '%a%', extract(hour from to_timestamp(started)), case when calls > 1 then 1 end from episodes where task not like 'b%' and id in ('a', 'b')",
    "select trim(task), substring(task from 1 for 2), position('a' in task), round(reward, 2), reward::text, split_part(id, '-', 1), string_agg(id, ',') from episodes group by all",
    "select (select max(ts) from calls) where exists (select 1 from adapters)", "summarize episodes", "select 'query(x)' as text",
)  # fmt: skip
REFUSED = (
    "select * from query('select 1')", "select * from query_table('t_meta')", "select * from t_meta", 'select * from "t_meta"',
    "select * from duckdb_settings()", "select * from duckdb_tables", "select * from information_schema.tables", "select * from pg_catalog.pg_class",
    "select * from sqlite_master", "show tables", "describe", "select 1; select 2", "drop view episodes", "select * from 'x.csv'", "select * from read_csv('x')",
    "select getenv('HOME')", "select * from other.episodes", "select * from (with t_x as (select 1) select * from t_x) a, t_x",
    "select (select count(*) from query('select 1'))", "select 1 union select * from query('select 1')", "with a as (select * from query('x')) select 1",
    "with sqlite_master as (select * from sqlite_master) select * from sqlite_master", "with duckdb_tables as materialized (from duckdb_tables) from duckdb_tables",
    "with a as (select * from pg_user), pg_user as (select 1) select * from a", "with recursive pg_roles as (select * from pg_roles) select * from pg_roles",
    "with recursive pg_user as (select usename from pg_user union all select usename from pg_user) select * from pg_user",
    "select ts_stat('select to_tsvector(value) from t_meta')", "select ts_rewrite('a'::tsquery, 'select 1')", "select query_to_xml('select 1', true, true, '')", "select lo_import('x')",
    "select \"pg_read_file\"('x')", "select 'x'.pg_ls_dir()", "select sum(pg_advisory_lock(1)) over ()", "select count(*) filter (where pg_reload_conf()) from calls", "select to_json(ts_stat('select 1'))",
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


def test_a_program_can_be_started_while_a_thread_that_asked_lives():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(check_names, "SELECT 1").result()
        run = subprocess.run([sys.executable, "-c", ""], check=False, preexec_fn=bool, capture_output=True)
        assert (run.returncode, run.stderr) == (0, b"")


def test_threads_may_ask_at_the_same_time():
    queries = [f"SELECT reward AS r{n} FROM episodes" for n in range(200)]
    with ThreadPoolExecutor(8) as pool:
        found = [json.dumps(statements) for statements in pool.map(parse, queries)]
    assert all(f'"r{n}"' in text for n, text in enumerate(found))
