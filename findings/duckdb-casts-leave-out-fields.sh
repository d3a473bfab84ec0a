#!/bin/sh
# Guess: a struct with a field that the column's type does not have is refused, as a whole row with a wrong column is.
# Is: such a field is left out without a word, and the one that is missing becomes NULL, as long as one name fits; also
# in lists of structs, and for a dict given from Python. JSON is refused.
# Seen in 2.0.1.
# Here: proxy/slipstream_proxy/store/tables/schema.py keeps calls and tags as JSON, not as structs.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'duckdb==2.0.1'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import sys

import duckdb

db = duckdb.connect()
db.execute("CREATE TABLE t (call STRUCT(town VARCHAR, day VARCHAR))")


def told(statement, values=()):
    try:
        return db.execute(statement, values).fetchall()[0][0]
    except duckdb.Error as error:
        return type(error).__name__


print("versions: duckdb", duckdb.__version__)
print("behaviour: A struct's field that the target lacks is left out in silence, and what it should have been is NULL.")
seen = [
    ("INSERT of a struct", told("INSERT INTO t VALUES ({'town': 'Rome', 'dya': 'today'}) RETURNING call")),
    ("INSERT of a Python dict", told("INSERT INTO t VALUES (?) RETURNING call", [{"town": "Rome", "dya": "today"}])),
    ("a cast of a list", told("SELECT [{'a': 1, 'c': 3}]::STRUCT(a INT, b INT)[]")),
    ("no name fits", told("SELECT {'c': 3}::STRUCT(a INT, b INT)")),
    ("a cast of JSON", told("""SELECT '{"a": 1, "c": 3}'::JSON::STRUCT(a INT, b INT)""")),
]
for what, result in seen:
    print(f"seen: {what}: {result}")
half = {"town": "Rome", "day": None}
same = [result for _, result in seen] == [half, half, [{"a": 1, "b": None}], "BinderException", "ConversionException"]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
