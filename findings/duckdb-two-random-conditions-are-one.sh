#!/bin/sh
# Guess: random() is drawn anew for each condition: random() < 0.5 AND random() < 0.6 keeps 30 % of the rows.
# Is: conditions on random() itself are taken together as if it were a column: 50 % are kept, > 0.5 AND < 0.5 keeps none,
# and a sample of a sample (a subquery or a view with a condition on random()) is the first sample.
# Seen in 2.0.1. random() * 1 in one of the two is drawn for itself.
# Here: docs/sql.md, queries of one's own: hash(id) draws a part of the calls instead.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'duckdb==2.0.1'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import sys

import duckdb

db = duckdb.connect()
rows = 100_000
asked = [
    ("random() < 0.5 AND random() < 0.6", f"FROM range({rows}) WHERE random() < 0.5 AND random() < 0.6", 0.5),
    ("random() > 0.5 AND random() < 0.5", f"FROM range({rows}) WHERE random() > 0.5 AND random() < 0.5", 0.0),
    ("a sample of a sample", f"FROM (FROM range({rows}) WHERE random() < 0.5) WHERE random() < 0.6", 0.5),
    ("random() < 0.5 AND random() * 1 < 0.6", f"FROM range({rows}) WHERE random() < 0.5 AND random() * 1 < 0.6", 0.3),
]
print("versions: duckdb", duckdb.__version__)
print("behaviour: Two conditions on random() of one query are conditions on one number.")
same = True
for what, query, expected in asked:
    part = db.execute(f"SELECT count(*) {query}").fetchone()[0] / rows
    print(f"seen: {what} keeps {part:.3f} of the rows")
    same &= abs(part - expected) < 0.03

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
