#!/bin/sh
# Guess: a view of SELECT * keeps the columns that it was made with; once its table has others it raises ("Contents of
# view were altered"), as in DuckDB 1, or does not show them, as in PostgreSQL.
# Is: the star is read anew each time: a column that is added is in the view, and a table that was dropped and made with
# other columns and types is shown as it is now.
# Seen in 2.0.1.
# Here: proxy/slipstream_proxy/store/tables/schema.py makes the views anew at each start.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'duckdb==2.0.1'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import sys

import duckdb

db = duckdb.connect()


def view():
    rows = db.execute("FROM v").fetchall()
    return [(name, kind) for name, kind, *_ in db.execute("DESCRIBE v").fetchall()], rows


db.execute("CREATE TABLE t (a INTEGER)")
db.execute("CREATE VIEW v AS SELECT * FROM t")
db.execute("INSERT INTO t VALUES (1)")
db.execute("ALTER TABLE t ADD COLUMN b INTEGER DEFAULT 2")
added = view()
db.execute("DROP TABLE t")
db.execute("CREATE TABLE t (q VARCHAR)")
db.execute("INSERT INTO t VALUES ('x')")
other = view()
print("versions: duckdb", duckdb.__version__)
print("behaviour: A view of SELECT * has the columns that its table has now, and raises at no change of it.")
print("seen: after ADD COLUMN:", added)
print("seen: after DROP and CREATE with another column:", other)
same = added == ([("a", "INTEGER"), ("b", "INTEGER")], [(1, 2)]) and other == ([("q", "VARCHAR")], [("x",)])

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
