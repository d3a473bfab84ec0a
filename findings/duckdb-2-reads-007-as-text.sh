#!/bin/sh
# Guess: a CSV column of 1, 2, 007 is BIGINT, and 007 is 7.
# Is: one number with a zero before it makes the column VARCHAR: max() is by the alphabet, id > 10 raises. If it stands
# below the rows that the reader looks at first (20,480), the column is BIGINT and it is 7. So the type hangs on the row.
# Seen in 2.0.1.
# Here: docs/sql.md: ids are text in each view, also where a CSV that is compared with one has numbers.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'duckdb==2.0.1'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import pathlib
import sys

import duckdb

folder = pathlib.Path(sys.argv[1])
db = duckdb.connect()


def read(numbers):
    file = folder / "ids.csv"
    file.write_text("id,n\n" + "".join(f"{number},1\n" for number in numbers))
    kind, greatest = db.execute(f"SELECT any_value(typeof(id)), max(id) FROM '{file}'").fetchone()
    return kind, greatest


print("versions: duckdb", duckdb.__version__)
print("behaviour: A number with a zero before it makes a CSV's column VARCHAR, if it stands in the first rows.")
seen = [
    ("1, 2, 30", read(["1", "2", "30"])),
    ("1, 2, 30, 007", read(["1", "2", "30", "007"])),
    ("1 to 60000, 007", read([*map(str, range(1, 60_001)), "007"])),
]
for what, (kind, greatest) in seen:
    print(f"seen: {what}: {kind}, the greatest is {greatest!r}")
same = [result for _, result in seen] == [("BIGINT", 30), ("VARCHAR", "30"), ("BIGINT", 60_000)]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
