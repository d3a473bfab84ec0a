#!/bin/sh
# Guess: Table.from_pylist gives a column for each key of any row, with null where a row lacks it.
# Is: its columns are the first row's keys, and what later rows have beside them is dropped without a word. Within a row
# it is the other way: a nested object gets the fields of all rows, so a tool call gets every other tool's arguments.
# Seen in pyarrow 26.0.1 (Parquet, and datasets' from_list, stand on it).
# Here: docs/store.md, an export's arguments are text.
# Source: https://github.com/apache/arrow/issues/40124
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'pyarrow==26.0.1'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import sys

import pyarrow

rows = [{"call": {"path": "a.txt"}}, {"call": {"town": "Rome"}, "reward": 1.0}]
seen = pyarrow.Table.from_pylist(rows).to_pylist()
print("versions: pyarrow", pyarrow.__version__)
print("behaviour: a column that the first row lacks is lost, and a nested object gets the fields of all rows.")
print("seen:", rows, "→", seen)
same = seen == [{"call": {"path": "a.txt", "town": None}}, {"call": {"path": None, "town": "Rome"}}]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
