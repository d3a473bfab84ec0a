from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.server import Server

from slipstream.cli import main
from slipstream.errors import SlipstreamError
from slipstream.operate.logs import episode_of

USER, REPLY = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}


def conversations(server: Server) -> list[Any]:
    """All that were sent, however many in a request."""
    return [one for seen in server.seen for one in seen.json.get("conversations", [seen.json])]


def jsonl(*rows: Any) -> Path:
    path = Path("log.jsonl")
    path.write_text("\n\n".join(json.dumps(r) for r in rows))
    return path


def test_conversations(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("POST", "/import/conversations", {})
    path = jsonl(
        {
            "messages": [USER, REPLY],
            "id": "e1",
            "task": "t",
            "reward": 1.0,
            "model": "gpt",
            "tags": {"a": "b"},
            "split": "eval",
        },
        {"messages": [USER, REPLY]},
    )
    assert main(["import", str(path), "--task", "other", "--url", server.url]) == 0
    assert capsys.readouterr().out == "2 episodes\n"
    first, second = conversations(server)
    assert first == {
        "id": "e1", "task": "t", "split": "eval", "model": "gpt", "messages": [USER, REPLY], "tools": None, "reward": 1.0, "tags": {"a": "b"},
    }  # fmt: skip
    assert (second["task"], second["split"], second["id"]) == ("other", "train", None)


def test_request_and_response(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("POST", "/import/conversations", {})
    tools = [{"type": "function", "function": {"name": "f"}}]
    row = {
        "request": {"messages": [USER], "model": "gpt", "tools": tools},
        "response": {"choices": [{"message": REPLY}]},
    }
    texts = {k: json.dumps(v) for k, v in row.items()}
    assert main(["import", str(jsonl(row, texts)), "--json", "--url", server.url]) == 0
    assert json.loads(capsys.readouterr().out) == {"episodes": 2}
    for sent in conversations(server):
        assert sent["messages"] == [USER, REPLY]
        assert (sent["model"], sent["tools"]) == ("gpt", tools)


def test_trajectory_parquet(server: Server) -> None:
    server.on("POST", "/import/conversations", {})
    rows = [
        {
            "messages": json.dumps([USER, REPLY]),
            "tools": json.dumps([{"type": "function"}]),
            "reward": 0.5,
            "scenario_id": f"s{i}",
        }
        for i in range(300)
    ]
    pq.write_table(pa.Table.from_pylist(rows), "log.parquet")
    assert main(["import", "log.parquet", "--url", server.url]) == 0
    sent = conversations(server)
    assert len(sent) == 300
    assert {one["task"] for one in sent} == {f"s{i}" for i in range(300)}
    assert sent[-1]["messages"] == [USER, REPLY]
    assert sent[-1]["tools"] == [{"type": "function"}]


def test_choices_among_messages() -> None:
    row = {"messages_and_choices": [USER, {"finish_reason": "stop", "message": REPLY}]}
    assert episode_of(row, None, "here")["messages"] == [USER, REPLY]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "log.jsonl:2: not JSON"),
        (b"[1]", "log.jsonl:2: an object is needed"),
        (b'{"a": "\xff"}', "log.jsonl:2: not JSON"),
        (b"{}", "log.jsonl:2: no messages (nor request and response)"),
        (b'{"messages": []}', "log.jsonl:2: no messages"),
        (b'{"messages": "["}', "log.jsonl:2: not JSON"),
        (b'{"messages": {"role": "user"}}', "log.jsonl:2: no messages"),
        (b'{"request": {}, "response": {"choices": []}}', "log.jsonl:2: request and response are no chat completion"),
        (b'{"request": [], "response": {}}', "log.jsonl:2: request and response are no chat completion"),
    ],
)
def test_a_bad_line_is_named(server: Server, capsys: pytest.CaptureFixture[str], line: bytes, message: str) -> None:
    server.on("POST", "/import/conversations", {})
    Path("log.jsonl").write_bytes(json.dumps({"messages": [USER]}).encode() + b"\n" + line + b"\n")
    assert main(["import", "log.jsonl", "--url", server.url]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"slipstream import: {message}")
    assert err.count("\n") == 1


def test_files_that_are_none(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "none.jsonl", "--url", server.url]) == 1
    assert capsys.readouterr().err == "slipstream import: none.jsonl: no such file\n"
    Path("bad.parquet").write_bytes(b"PAR1 no")
    assert main(["import", "bad.parquet", "--url", server.url]) == 1
    assert capsys.readouterr().err.startswith("slipstream import: bad.parquet: not Parquet: ")


def test_what_is_missing_says_where() -> None:
    with pytest.raises(SlipstreamError, match="^there: no messages"):
        episode_of({"id": "x"}, None, "there")


def test_our_own_exports_go_back_whole(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("POST", "/import/episode", {})
    call = {"id": "c1", "messages": [USER], "prompt_ids": [1, 2], "completion_ids": [[3]], "logprobs": [[-0.5]]}
    row = {
        "id": "e1", "key": "-", "tags": {"a": "b"}, "rewards": [{"name": "reward", "value": 1.0}], "call_list": [call], "lineage": [],
        "batches": ["b1"], "trained_adapters": [],
    }  # fmt: skip
    assert main(["import", str(jsonl(row)), "--url", server.url]) == 0
    lists = ("prompt_ids", "completion_ids", "logprobs")
    flat = {k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in row.items()}
    flat["call_list"] = json.dumps([{k: v for k, v in call.items() if k not in lists}])
    flat |= {name: [call[name]] for name in lists} | {"messages": json.dumps([USER, REPLY])}  # type: ignore[arg-type]
    pq.write_table(pa.Table.from_pylist([flat]), "all.parquet")
    assert main(["import", "all.parquet", "--url", server.url]) == 0
    assert [s.json for s in server.seen] == [row, row]
    assert capsys.readouterr().out == "1 episodes\n" * 2


def test_adapters_as_the_command_prints_them(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("POST", "/import/adapters", {"adapters": 1})
    told = {"adapters": [{"name": "m@1"}], "live": {"m": "m@1"}}
    Path("adapters.json").write_text(json.dumps(told, indent=2))
    assert main(["import", "adapters.json", "--url", server.url]) == 0
    assert server.seen[0].json == told
    assert capsys.readouterr().out == "1 adapters\n"


ART = {
    "trajectories": [
        {
            "messages_and_choices": [USER, {"finish_reason": "stop", "index": 0, "message": REPLY, "logprobs": None}],
            "reward": 0.5,
            "metrics": {"won": True, "turns": 3},
            "metadata": {"scenario_id": "find 17", "step": 4},
            "additional_histories": [{"messages_and_choices": [USER, REPLY, USER, REPLY], "tools": None}],
            "logs": ["x"],
        },
        {"messages_and_choices": [USER, REPLY], "reward": 1.0, "metrics": {}, "metadata": {"scenario_id": "find 17"}},
    ],
    "exceptions": [],
}


def test_arts_own_trajectory_files(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("POST", "/import", {})
    server.on("POST", "/import/conversations", {})
    path = jsonl(ART, {"trajectories": [{"messages_and_choices": [USER, REPLY], "reward": 0.0}] * 2})
    assert main(["import", str(path), "--url", server.url]) == 0
    assert capsys.readouterr().out == "4 episodes\n"
    bodies = conversations(server)
    by_id: dict[str, list[dict[str, Any]]] = {}
    for body in bodies:
        by_id.setdefault(body["id"], []).append(body)
    histories = next(b for b in by_id.values() if len(b) == 2)  # one episode, its main history first
    assert histories[0]["messages"] == [USER, REPLY] and histories[0]["reward"] == 0.5
    assert histories[0]["metrics"] == {"turns": 3.0} and histories[0]["tags"]["step"] == "4"
    assert len(histories[1]["messages"]) == 4 and "reward" not in histories[1]
    tasks = [b[0]["task"] for b in by_id.values()]
    assert sorted(tasks.count(t) for t in set(tasks)) == [2, 2], "a line is a group of one task"
    assert len(by_id) == 4
    server.seen.clear()
    assert main(["import", str(path), "--url", server.url]) == 0  # again: the same ids
    assert {one["id"] for one in conversations(server)} == set(by_id)


def test_trajectories_that_are_none(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    path = jsonl({"trajectories": [1]})
    assert main(["import", str(path), "--url", server.url]) == 1
    assert "log.jsonl:1: trajectories is no list of objects" in capsys.readouterr().err


def test_the_first_refusal_ends_it_and_is_named(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("POST", "/import", {"error": {"type": "x", "message": "no"}}, 409)
    assert main(["import", str(jsonl({"messages": [USER, REPLY]})), "--url", server.url]) == 1
    assert capsys.readouterr().err == "slipstream import: log.jsonl:1: no\n"
