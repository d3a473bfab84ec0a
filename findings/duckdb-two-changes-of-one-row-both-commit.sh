#!/bin/sh
# Guess: of two transactions that change one row the second is refused, with a conflict.
# Is: only if both update the same column, or both delete. An UPDATE beside a DELETE, and updates of two columns, both
# commit: the deleted row is gone, with what was written. If one of the columns has an index, the other's update is
# lost.
# Seen in 2.0.1 and 1.4.4.
# Here: proxy/slipstream_proxy/store/backends/duckdb.py lets one transaction write at a time.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'duckdb==2.0.1'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import sys

import duckdb

db = duckdb.connect()


def both(first, second, index):
    """Who committed, and what the table has then."""
    db.execute("CREATE OR REPLACE TABLE runs (id BIGINT, reward BIGINT, name BIGINT)")
    db.execute("INSERT INTO runs VALUES (1, 0, 0)")
    if index:
        db.execute("CREATE INDEX by_name ON runs (name)")
    one, other = db.cursor(), db.cursor()
    one.begin()
    other.begin()
    one.execute(first)
    try:
        other.execute(second)
        other.commit()
        told = "both commit"
    except duckdb.TransactionException:
        told = "refused"
    one.commit()
    return told, db.execute("FROM runs").fetchall()


reward, name = "UPDATE runs SET reward = 5", "UPDATE runs SET name = 7"
cases = {
    (reward, "UPDATE runs SET reward = 6", False): ("refused", [(1, 5, 0)]),
    ("DELETE FROM runs", "DELETE FROM runs", False): ("refused", []),
    ("DELETE FROM runs", reward, False): ("both commit", []),
    (reward, "DELETE FROM runs", False): ("both commit", []),
    (reward, name, False): ("both commit", [(1, 5, 7)]),
    (reward, name, True): ("both commit", [(1, 0, 7)]),
}
print("versions: duckdb", duckdb.__version__)
print("behaviour: an UPDATE and a DELETE of one row both commit, and so do updates of two columns, one lost beside an index.")
same = True
for (first, second, index), expected in cases.items():
    seen = both(first, second, index)
    print(f"seen: {first} | {second}{' (name has an index)' if index else ''}: {seen[0]}, the table: {seen[1]}")
    same &= seen == expected

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
