"""The command: what it sends, what it says, and when it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.server import IMPORTS, Server, imported

from slipstream.cli import main

USER, REPLY = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}
TALK = {"messages": [USER, REPLY]}


def sent(server: Server) -> list[Any]:
    """All that were sent, however many in a request."""
    asked = [seen for seen in server.seen if not seen.path.endswith("/files")]
    return [one for seen in asked for one in seen.json.get("conversations", [seen.json])]


def jsonl(*rows: Any, name: str = "log.jsonl") -> str:
    Path(name).write_text("\n\n".join(json.dumps(r) for r in rows))
    return name


@pytest.fixture
def ready(server: Server) -> Server:
    server.on("POST", "/import/adapters", {})
    server.routes |= {("POST", path): imported for path in IMPORTS}
    return server


def test_conversations_and_their_summary(ready: Server, capsys: pytest.CaptureFixture[str]) -> None:
    row = {**TALK, "id": "e1", "task": "t", "reward": 1.0, "model": "gpt", "tags": {"a": "b"}, "split": "eval"}
    assert main(["import", jsonl(row, TALK), "--task", "other", "--url", ready.url]) == 0
    assert capsys.readouterr().out == "2 episodes, 2 calls, 0 tool calls, 1 reward, 2 new\n"
    first, second = sent(ready)
    assert (first["id"], first["task"], first["split"], first["tags"], first["reward"]) == (
        "e1",
        "t",
        "eval",
        {"a": "b"},
        1.0,
    )
    assert (first["messages"], first["replies"], second["task"]) == ([USER, REPLY], [{"message": 1}], "other")


def test_a_bad_line_is_named_and_the_rest_comes_in(ready: Server, capsys: pytest.CaptureFixture[str]) -> None:
    name = jsonl({**TALK, "reward": [1]}, TALK, {"messages": "["})
    assert main(["import", name, "--url", ready.url]) == 0
    told = capsys.readouterr()
    assert told.out == "1 episode, 1 call, 0 tool calls, 0 rewards, 1 new, 2 refused\n"
    assert "slipstream import: refused: log.jsonl:1: reward: a number is needed, this is a list" in told.err
    assert "refused: log.jsonl:5: messages: not JSON" in told.err


def test_strict_imports_nothing_of_a_file_that_is_not_clean(ready: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", jsonl({**TALK, "reward": "1.0"}, TALK), "--strict", "--url", ready.url]) == 1
    assert "converted: 1 × reward" in (err := capsys.readouterr().err) and "nothing was imported" in err
    assert not ready.seen
    assert main(["import", jsonl(TALK), "--strict", "--url", ready.url]) == 0


def test_nothing_at_all_is_a_failure(ready: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", jsonl({"x": 1}), "--url", ready.url]) == 1
    assert "no messages (nor request and response); its fields: x" in capsys.readouterr().err
    Path("empty.jsonl").write_text("")
    assert main(["import", "empty.jsonl", "--url", ready.url]) == 1
    assert "no row in it" in capsys.readouterr().err


def test_what_the_proxy_refuses_is_named(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.routes["POST", "/import/files"] = imported
    server.on("POST", "/import", {"error": {"type": "x", "message": "no"}}, 409)
    assert main(["import", jsonl(TALK), "--url", server.url]) == 1
    assert "slipstream import: refused: log.jsonl:1: no\n" in capsys.readouterr().err


def test_half_an_emoji_is_sent(ready: Server) -> None:
    assert (
        main(["import", jsonl({"messages": [{"role": "user", "content": "a \ud83d"}, REPLY]}), "--url", ready.url]) == 0
    )
    assert sent(ready)[0]["messages"][0]["content"] == "a \ud83d"


def test_files_that_are_none(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "none.jsonl", "--url", server.url]) == 1
    assert capsys.readouterr().err == "slipstream import: none.jsonl: no such file\n"
    Path("bad.parquet").write_bytes(b"PAR1 no")
    assert main(["import", "bad.parquet", "--url", server.url]) == 1
    assert capsys.readouterr().err.startswith("slipstream import: refused: bad.parquet: not Parquet: ")


def test_forms_are_listed_and_an_unknown_one_is_refused(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "x", "--from", "list", "--url", server.url]) == 0
    assert "langfuse" in capsys.readouterr().out
    assert main(["import", "x", "--from", "nope", "--url", server.url]) == 1
    assert "known are slipstream, art" in capsys.readouterr().err


def test_our_own_exports_go_back_whole(ready: Server, capsys: pytest.CaptureFixture[str]) -> None:
    call = {"id": "c1", "messages": [USER], "prompt_ids": [1, 2], "completion_ids": [[3]], "logprobs": [[-0.5]]}
    row = {
        "id": "e1", "key": "-", "tags": {"a": "b"}, "rewards": [{"name": "reward", "value": 1.0}], "call_list": [call], "lineage": [],
        "batches": ["b1"], "trained_adapters": [],
    }  # fmt: skip
    assert main(["import", jsonl(row), "--url", ready.url]) == 0
    lists = ("prompt_ids", "completion_ids", "logprobs")
    flat = {k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in row.items()}
    flat["call_list"] = json.dumps([{k: v for k, v in call.items() if k not in lists}])
    flat |= {name: [call[name]] for name in lists} | {"messages": json.dumps([USER, REPLY])}  # type: ignore[arg-type]
    pq.write_table(pa.Table.from_pylist([flat]), "all.parquet")
    assert main(["import", "all.parquet", "--json", "--url", ready.url]) == 0
    assert [s.json for s in ready.seen] == [row, row]
    assert json.loads(capsys.readouterr().out.splitlines()[1])["rewards"] == 1


def test_adapters_as_the_command_prints_them(ready: Server, capsys: pytest.CaptureFixture[str]) -> None:
    told = {"adapters": [{"name": "m@1"}], "live": {"m": "m@1"}}
    Path("adapters.json").write_text(json.dumps(told, indent=2))
    assert main(["import", "adapters.json", "--url", ready.url]) == 0
    assert ready.seen[0].json == told
    assert capsys.readouterr().out == "1 adapters\n"
