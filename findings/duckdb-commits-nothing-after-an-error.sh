#!/bin/sh
# Guess: COMMIT of a transaction in which a statement failed raises, or keeps what was written before.
# Is: it succeeds, by SQL and by commit(), and nothing is kept. Since 2.0 a statement that DuckDB cannot parse, or that
# names no table, is enough; 1.4 kept the rows then. Code that catches an error and commits loses all rows, and hears of
# none.
# Seen in 2.0.0 and 2.0.1; 1.4.4 for errors of the data (a constraint, a cast).
# Here: proxy/slipstream_proxy/store/backends/duckdb.py rolls back whatever it catches within a transaction.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'duckdb==2.0.1'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import sys

import duckdb

db = duckdb.connect()
db.execute("CREATE TABLE runs (id BIGINT PRIMARY KEY)")
wrong = {
    "a constraint": "INSERT INTO runs VALUES (1)",
    "a cast": "SELECT CAST('x' AS INTEGER)",
    "a table that is not there": "SELECT * FROM nothing",
    "a misspelt statement": "SELEC 1",
}
print("versions: duckdb", duckdb.__version__)
print("behaviour: COMMIT after a statement that failed raises nothing, and keeps nothing of the transaction.")
same = True
for how, commit in (("COMMIT", lambda: db.execute("COMMIT")), ("commit()", db.commit)):
    for what, statement in wrong.items():
        db.execute("BEGIN")
        db.execute("INSERT INTO runs VALUES (1)")
        try:
            db.execute(statement).fetchall()
        except duckdb.Error:
            commit()
        left = db.execute("SELECT count(*) FROM runs").fetchone()[0]
        print(f"seen: {how} after {what}: no error, rows kept: {left}")
        same &= left == 0

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
