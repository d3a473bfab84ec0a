"""Logs of other programs, read as episodes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slipstream.errors import SlipstreamError
from slipstream.operate.logs import episode_of, exported, read_jsonl, read_log, trajectories

TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_lines_are_numbered_as_an_editor_numbers_them(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('\n{"a": 1}\n\n{"a": 2}\n')
    assert list(read_jsonl(file)) == [(2, {"a": 1}), (4, {"a": 2})]
    for bad in ("[1]", "{", '"x"'):
        file.write_text('{"a": 1}\n' + bad)
        with pytest.raises(SlipstreamError, match=r"a\.jsonl:2"):
            list(read_jsonl(file))


def test_null_columns_and_marks_of_trainers_are_left_out() -> None:
    reply = {"role": "assistant", "content": None, "tool_calls": '[{"id": "c"}]', "name": None, "trainable": True}
    body = episode_of({"messages": [TALK[0], reply]}, None, "f:1")
    assert body["messages"][1] == {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}


@pytest.mark.parametrize(
    ("row", "task"),
    [({"task": "a"}, "a"), ({"scenario_id": "b"}, "b"), ({"metadata": {"task": "c"}}, "c"), ({}, "default")],
)
def test_where_a_task_stands(row: dict[str, object], task: str) -> None:
    assert episode_of({"messages": TALK, **row}, "default", "f:1")["task"] == task


@pytest.mark.parametrize("reward", [True, "1", float("nan"), None])
def test_what_is_no_reward(reward: object) -> None:
    assert episode_of({"messages": TALK, "reward": reward}, None, "f:1")["reward"] is None


def test_request_and_response_are_a_conversation() -> None:
    row = {
        "request": json.dumps({"model": "m", "messages": TALK[:1]}),
        "response": {"choices": [{"message": TALK[1]}], "created": 7},
    }
    body = episode_of(row, None, "f:1")
    assert (body["messages"], body["model"], body["at"]) == (TALK, "m", 7.0)
    with pytest.raises(SlipstreamError, match="f:1: request and response are no chat completion"):
        episode_of({**row, "response": {"choices": []}}, None, "f:1")


def test_our_own_rows_are_told_from_others() -> None:
    assert exported({"messages": TALK}, "f:1") is None
    row = {"id": "e", "call_list": [{"id": "c"}]}
    assert exported(row, "f:1") is row


def test_a_group_of_trajectories_is_one_task() -> None:
    row = {"trajectories": [{"messages": TALK, "reward": r} for r in (0.0, 1.0)]}
    bodies = [run for (run,) in trajectories(row, None, "f:1")]
    assert bodies[0]["task"] == bodies[1]["task"]
    assert bodies[0]["id"] != bodies[1]["id"]
    again = [run for (run,) in trajectories(row, None, "f:1")]
    assert again == bodies  # the same file twice is the same episodes
    with pytest.raises(SlipstreamError, match="no list"):
        list(trajectories({"trajectories": 3}, None, "f:1"))


def art_parquet(path: Path, groups: list[dict[str, object] | None]) -> None:
    """As ART's ``write_trajectory_groups_parquet`` writes two runs of each group."""
    rows = [
        {
            "group_index": index,
            "group_metadata": None if about is None else json.dumps(about),
            "reward": reward,
            "metrics": json.dumps({"right": 1}),
            "metadata": json.dumps({"u": "ann b", "deep": {"a": 1}, "none": None}),
            "tools": None,
            "messages": [*TALK[:-1], {**TALK[-1], "content": f"reply {index} {reward}"}],
        }
        for index, about in enumerate(groups)
        for reward in (0.0, 1.0)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)


def test_arts_parquet_keeps_groups_and_metadata(tmp_path: Path) -> None:
    path = tmp_path / "art.parquet"
    art_parquet(path, [{"scenario_id": "g0"}, None, {"level": 3}])
    bodies = [entry.bodies[0] for entry in read_log(path, None)]
    tasks = [body["task"] for body in bodies]
    assert tasks[:2] == ["g0", "g0"]
    assert tasks[2] == tasks[3] != tasks[4] == tasks[5]
    assert len({body["id"] for body in bodies}) == 6
    assert [body["reward"] for body in bodies] == [0.0, 1.0] * 3
    assert bodies[0]["tags"] == {"u": "ann b", "scenario_id": "g0"}
    assert bodies[4]["tags"] == {"u": "ann b", "level": "3"}
    assert bodies[0]["metrics"] == {"right": 1.0}


def test_metadata_of_a_single_trajectory_is_its_tags(tmp_path: Path) -> None:
    body = episode_of(
        {"messages": TALK, "metadata": {"u": "ann b", "n": 3, "deep": {}}, "tags": {"u": "x"}}, None, "f:1"
    )
    assert body["tags"] == {"u": "x", "n": "3"}


def test_the_share_of_the_file_grows_to_one(tmp_path: Path) -> None:
    table = pa.table({"messages": [json.dumps(TALK)] * 4, "task": ["t"] * 4})
    pq.write_table(table, tmp_path / "a.parquet")
    for file in (write(tmp_path / "a.jsonl", *[{"messages": TALK}] * 4), tmp_path / "a.parquet"):
        entries = list(read_log(file, "t"))
        assert [e.share for e in entries] == [0.25, 0.5, 0.75, 1.0]
        assert entries[0].bodies[0]["messages"] == TALK
