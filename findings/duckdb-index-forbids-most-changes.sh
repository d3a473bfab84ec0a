#!/bin/sh
# Guess: a table that has an index can be altered, as in PostgreSQL, or no such table can be.
# Is: DuckDB adds a column, but refuses to drop, rename or retype one, also one that is in no index, or to rename the
# table ("there are entries that depend on it"). Without the index each of these works.
# Seen in 2.0.0 and 2.0.1.
# Here: proxy/slipstream_proxy/store/tables/schema.py (DUCKDB_INDEXES) drops indexes before a migration.
# Source: https://github.com/duckdb/duckdb/issues/14664
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'duckdb==2.0.1'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import sys

import duckdb

db = duckdb.connect()
changes = {
    "ALTER TABLE runs ADD COLUMN more INTEGER": True,
    "ALTER TABLE runs ALTER text SET DEFAULT 'x'": True,
    "ALTER TABLE runs DROP COLUMN text": False,
    "ALTER TABLE runs RENAME text TO words": False,
    "ALTER TABLE runs ALTER text TYPE BLOB": False,
    "ALTER TABLE runs RENAME TO others": False,
}


def works(change, index):
    db.execute("CREATE OR REPLACE TABLE runs (id BIGINT, text VARCHAR)")
    if index:
        db.execute("CREATE INDEX by_id ON runs (id)")
    db.execute("BEGIN")
    try:
        db.execute(change)
    except duckdb.DependencyException:
        return False
    finally:
        db.execute("ROLLBACK")
    return True


print("versions: duckdb", duckdb.__version__)
print("behaviour: with any index DuckDB lets a table get columns, and refuses to drop, rename or retype any.")
seen = {change: works(change, index=True) for change in changes}
for change, fine in seen.items():
    print("seen:", change, "→", "done" if fine else "refused")
same = seen == changes and all(works(change, index=False) for change in changes)

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
