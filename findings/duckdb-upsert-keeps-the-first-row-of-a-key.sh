#!/bin/sh
# Guess: of two rows of one key within one INSERT … ON CONFLICT DO UPDATE the last one counts, or it raises as in
# PostgreSQL; n = t.n + excluded.n adds both.
# Is: the first row counts, the others are left out without a word, also for INSERT OR REPLACE, MERGE and UPDATE … FROM.
# Seen in 2.0.1. executemany is a statement a row, so there the last one counts.
# Here: proxy/slipstream_proxy/store/tables/schema.py gives DuckDB's tables no keys to upsert by.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'duckdb==2.0.1'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import sys

import duckdb

rows = "VALUES (1, 10), (1, 20), (1, 40)"
ways = {
    "DO UPDATE SET n = excluded.n": f"INSERT INTO t {rows} ON CONFLICT DO UPDATE SET n = excluded.n",
    "DO UPDATE SET n = t.n + excluded.n": f"INSERT INTO t {rows} ON CONFLICT DO UPDATE SET n = t.n + excluded.n",
    "INSERT OR REPLACE": f"INSERT OR REPLACE INTO t {rows}",
    "UPDATE FROM": f"UPDATE t SET n = s.n FROM ({rows}) s(id, n) WHERE t.id = s.id",
}
print("versions: duckdb", duckdb.__version__)
print("behaviour: Of several rows of one key in one upsert the first is kept, and no error is raised.")
same = True
for full in (False, True):
    for how, statement in ways.items():
        if how == "UPDATE FROM" and not full:
            continue
        db = duckdb.connect()
        db.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT)")
        if full:
            db.execute("INSERT INTO t VALUES (1, 0)")
        db.execute(statement)
        left = db.execute("FROM t").fetchall()
        wanted = [(1, 10)]
        print(f"seen: {how} of n 10, 20, 40, {'over n 0' if full else 'into an empty table'}: {left}")
        same &= left == wanted
db = duckdb.connect()
db.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT)")
db.executemany("INSERT OR REPLACE INTO t VALUES (?, ?)", [(1, 10), (1, 20), (1, 40)])
left = db.execute("FROM t").fetchall()
print("seen: the same by executemany:", left)
same &= left == [(1, 40)]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
