#!/bin/sh
# Guess: an index on a column serves every search by that column's value.
# Is: DuckDB scans the table for IN of a few values, for two conditions, and for ORDER BY with LIMIT. It uses the
# index for one equality, and for a join with a table of one value.
# Seen in 2.0.0 and 2.0.1 (EXPLAIN ANALYZE names the kind of scan).
# Here: proxy/slipstream_proxy/store/read/episodes.py (get) sorts in Python, so that the index is used.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'duckdb==2.0.1'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import sys

import duckdb

db = duckdb.connect()
db.execute("CREATE TABLE runs AS SELECT i AS id, 'text ' || i AS text FROM range(200000) t(i)")
db.execute("CREATE INDEX by_id ON runs (id)")


def by_index(condition):
    plan = db.execute("EXPLAIN ANALYZE SELECT * FROM runs " + condition).fetchall()[0][1]
    return "Index Scan" in plan


expected = {
    "WHERE id = 77": True,
    "JOIN (SELECT 77 AS id) one USING (id)": True,
    "WHERE id IN (77, 78, 79)": False,
    "WHERE id = 77 OR id = 79": False,
    "WHERE id = 77 AND text = 'text 77'": False,
    "ORDER BY id LIMIT 1": False,
}
seen = {condition: by_index(condition) for condition in expected}
print("versions: duckdb", duckdb.__version__)
print("behaviour: DuckDB's index serves one equality; IN, OR, a second condition and ORDER BY … LIMIT scan the table.")
for condition, index in seen.items():
    print("seen:", condition, "→", "index" if index else "scan")
same = seen == expected

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
