#!/bin/sh
# Guess: sqrt(-1), ln(0) and ln(-1) raise an OutOfRangeException, as in DuckDB 1, or are NULL.
# Is: they are NaN and -infinity. NaN is above all numbers: WHERE sqrt(x) > 0.5 keeps the row of x = -1, it is the max(),
# the first by ORDER BY … DESC, and makes the mean NaN. No aggregate leaves it out as it leaves out NULL.
# Seen in 2.0.1.
# Here: docs/sql.md, queries of one's own: log-probabilities and spreads are such numbers.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'duckdb==2.0.1'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import sys

import duckdb

db = duckdb.connect()
db.execute("CREATE TABLE t (x DOUBLE)")
db.execute("INSERT INTO t VALUES (1), (-1), (9)")
asked = [
    ("SELECT sqrt(-1), ln(0), ln(-1), log10(-1), acos(2)", "(nan, -inf, nan, nan, nan)"),
    ("SELECT list(x ORDER BY x) FROM t WHERE sqrt(x) > 0.5", "([-1.0, 1.0, 9.0],)"),
    ("SELECT max(sqrt(x)), min(sqrt(x)), avg(sqrt(x)), median(sqrt(x)) FROM t", "(nan, 1.0, nan, 3.0)"),
    ("SELECT x FROM t ORDER BY sqrt(x) DESC LIMIT 1", "(-1.0,)"),
]
print("versions: duckdb", duckdb.__version__)
print("behaviour: Roots and logarithms of what has none are NaN or -infinity, and pass each condition 'greater than'.")
same = True
for query, expected in asked:
    result = str(db.execute(query).fetchone())
    print(f"seen: {query}: {result}")
    same &= result == expected

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
