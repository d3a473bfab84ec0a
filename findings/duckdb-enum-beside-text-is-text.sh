#!/bin/sh
# Guess: in level > 'low' the text becomes a value of the column's ENUM type, as in PostgreSQL, and the enum's order counts.
# Is: the enum becomes text, and the alphabet's order counts; a parameter is text, too, and a text that is no value of
# the enum is no error. ORDER BY, max() and a comparison with 'low'::level follow the enum.
# Seen in 2.0.1.
# Here: proxy/slipstream_proxy/store/tables/schema.py keeps states as text, and docs/sql.md compares no order of them.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'duckdb==2.0.1'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import sys

import duckdb

db = duckdb.connect()
db.execute("CREATE TYPE level AS ENUM ('low', 'mid', 'high')")
db.execute("CREATE TABLE t (urgency level)")
db.execute("INSERT INTO t VALUES ('low'), ('mid'), ('high')")


def found(condition, values=()):
    return [value for (value,) in db.execute(f"SELECT urgency FROM t WHERE {condition} ORDER BY urgency", values).fetchall()]


print("versions: duckdb", duckdb.__version__)
print("behaviour: An enum is compared with a text by the alphabet, and with its own type by the order of its values.")
asked = [
    ("urgency > 'low'", (), ["mid"]),
    ("urgency > ?", ["low"], ["mid"]),
    ("urgency BETWEEN 'low' AND 'high'", (), []),
    ("urgency > 'low'::level", (), ["mid", "high"]),
    ("urgency = 'lwo'", (), []),
]
same = True
for condition, values, expected in asked:
    result = found(condition, values)
    print(f"seen: of low, mid, high: {condition}: {result}")
    same &= result == expected

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
