#!/bin/sh
# Guess: a text column is compared with a number as text, or each such comparison is refused ("an explicit cast is
# required").
# Is: for =, <> and IN each text becomes a number of that literal's own type: '05' = 5 holds, '10' = 5.0 raises (no
# DECIMAL(2,1)), and so does one text that is no number, in any row. >, BETWEEN and = ANY([5]) are refused.
# Seen in 2.0.1.
# Here: docs/sql.md: ids are text in each view, also where they look like numbers.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'duckdb==2.0.1'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import sys

import duckdb

db = duckdb.connect()


def found(condition, *texts):
    rows = ", ".join(f"('{text}')" for text in texts)
    try:
        return [x for (x,) in db.execute(f"SELECT x FROM (VALUES {rows}) t(x) WHERE {condition}").fetchall()]
    except duckdb.Error as error:
        return type(error).__name__


print("versions: duckdb", duckdb.__version__)
print("behaviour: A text column is cast to the literal's type for = and IN, row by row, and > is refused.")
asked = [
    ("x = 5", ("5", "05", "10"), ["5", "05"]),
    ("x IN (5, 6)", ("5", "05", "10"), ["5", "05"]),
    ("x = 5", ("5", "a"), "ConversionException"),
    ("x = 5.0", ("5", "10"), "ConversionException"),
    ("x > 5", ("5", "10"), "BinderException"),
    ("x = ANY([5])", ("5", "10"), "BinderException"),
]
same = True
for condition, texts, expected in asked:
    result = found(condition, *texts)
    print(f"seen: {condition} of the texts {', '.join(texts)}: {result}")
    same &= result == expected

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
