"""ART's trajectories."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
from tests.support.logs import ASK, END, read, taken


def test_a_group_is_one_task_and_the_same_file_twice_the_same_episodes(tmp_path):
    row = {"trajectories": [{"messages": [ASK, END], "reward": r} for r in (0.0, 1.0)]}
    bodies, _ = read(tmp_path, row)
    assert bodies[0]["task"] == bodies[1]["task"] and bodies[0]["id"] != bodies[1]["id"]
    assert read(tmp_path, row)[0] == bodies
    assert "no list of objects" in read(tmp_path, {"trajectories": 3})[1].refused[0]


def test_parquet_keeps_groups_and_metadata(tmp_path):
    rows = [
        {"group_index": n, "group_metadata": None if about is None else json.dumps(about), "reward": reward, "metrics": json.dumps({"right": 1}),
         "metadata": json.dumps({"u": "ann b", "none": None}), "tools": None, "messages": [ASK, {**END, "content": f"{n} {reward}"}]}
        for n, about in enumerate(({"scenario_id": "g0"}, None, {"level": 3})) for reward in (0.0, 1.0)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "art.parquet")
    bodies, report = taken(tmp_path / "art.parquet")
    tasks = [b["task"] for b in bodies]
    assert tasks[:2] == ["g0", "g0"] and tasks[2] == tasks[3] != tasks[4] == tasks[5]
    assert [b["reward"] for b in bodies] == [0.0, 1.0] * 3 and report.clean
    assert bodies[4]["tags"] == {"u": "ann b", "level": "3"} and bodies[0]["metrics"] == {"right": 1.0}
