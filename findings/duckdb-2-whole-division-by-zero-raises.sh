#!/bin/sh
# Guess: dividing by zero gives NULL in DuckDB, as its documentation of 1.x has it.
# Is: since 2.0 x // 0 and x % 0 raise and end the transaction, where they were NULL; x / 0 is inf, or nan for 0 / 0,
# and raises nothing. So a rate per nothing is an error or infinity, by the operator.
# Seen in 2.0.0 and 2.0.1; 1.4.4 gives NULL for // and %. SET error_on_division_by_zero = false brings that back.
# Here: docs/store.md; queries of one's own over the store.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'duckdb==2.0.1'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import sys

import duckdb

db = duckdb.connect()


def result(expression):
    try:
        return str(db.execute(f"SELECT {expression} FROM (VALUES (5, 0)) t(x, zero)").fetchone()[0])
    except duckdb.Error as error:
        return type(error).__name__


expected = {
    "x // zero": "InvalidInputException",
    "x % zero": "InvalidInputException",
    "x / zero": "inf",
    "zero / zero": "nan",
    "TRY(x // zero)": "None",
}
seen = {expression: result(expression) for expression in expected}
print("versions: duckdb", duckdb.__version__)
print("behaviour: x // 0 and x % 0 raise since DuckDB 2.0, and x / 0 is infinity.")
for expression, told in seen.items():
    print(f"seen: {expression}: {told}")
same = seen == expected

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
