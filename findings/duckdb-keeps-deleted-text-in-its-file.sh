#!/bin/sh
# Guess: VACUUM or CHECKPOINT overwrites or gives back what DELETE removed, at the latest when the file is closed.
# Is: with half of the rows deleted, every deleted text still stands in the file, which is as large as before.
# Seen in 2.0.0 and 2.0.1.
# Here: proxy/slipstream_proxy/store/backends/duckfile.py writes the file anew when somebody is forgotten.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'duckdb==2.0.1'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import pathlib
import sys

import duckdb

path = pathlib.Path(sys.argv[1], "runs.duckdb")
db = duckdb.connect(path)
db.execute("CREATE TABLE runs AS SELECT i AS id, 'text-' || i || '-' || md5(i::VARCHAR) AS text FROM range(2000) t(i)")
db.execute("CHECKPOINT")
before = path.stat().st_size
db.execute("DELETE FROM runs WHERE id % 2 = 0")
db.execute("CHECKPOINT")
db.execute("VACUUM")
db.execute("CHECKPOINT")
db.close()
data = path.read_bytes()
left = sum(f"text-{i}-".encode() in data for i in range(0, 2000, 2))
print("versions: duckdb", duckdb.__version__)
print("behaviour: after DELETE, CHECKPOINT, VACUUM and close, DuckDB's file still holds the deleted texts.")
print(f"seen: {left} of 1000 deleted texts in the file; {before} bytes before, {len(data)} after")
same = left == 1000 and len(data) >= before

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
