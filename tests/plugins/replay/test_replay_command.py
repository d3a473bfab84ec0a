"""A repository's own check of a changed prompt, against an upstream that obeys its system prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.support.replayed import recorded, tool_message
from tests.support.server import Reply, Seen, Server

from slipstream.cli import main
from slipstream_replay.cases import json_line

SPOILED = ("e3", "e7", "e11")
CHAT = ("POST", "/v1/chat/completions")


def upstream(seen: Seen) -> Reply:
    """Under the prompt "Answer in words." it uses no tool; for three tasks another one in place of it."""
    system, user = (m["content"] for m in seen.json["messages"])
    episode = user.removeprefix("task ")
    message: dict[str, Any] = tool_message("find", name=episode)
    if system == "Answer in words.":
        message = tool_message("drop", name=episode) if episode in SPOILED else tool_message("find", name="guess")
    choice = {"message": message, "finish_reason": "tool_calls"}
    return Reply({"choices": [choice] * seen.json["n"], "usage": {"total_tokens": 9}})


@pytest.fixture
def cases(server: Server) -> list[str]:
    server.routes[CHAT] = upstream
    Path("cases.jsonl").write_text("".join(json_line(recorded(f"e{n}")) + "\n" for n in range(40)))
    Path("worse.txt").write_text("Answer in words.")
    Path("same.txt").write_text("Use the tool. Thank you.")
    return ["replay", "cases.jsonl", "--url", server.url, "--against"]


def test_a_worse_prompt_fails_and_the_report_names_its_worst_cases(
    cases: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*cases, "worse.txt", "--junit", "r.xml", "--markdown", "r.md"]) == 1
    assert not any(Path(report).stat().st_mode & 0o077 for report in ("r.xml", "r.md")), "they show prompts"
    suite = ET.fromstring(Path("r.xml").read_text())  # noqa: S314 - our own
    (failure,) = suite.iter("failure")
    text = Path("r.md").read_text()
    assert all(
        f"{e}, call 0" in (failure.text or "") and f"### {e}, call 0: 0.00 against 1.00" in text for e in SPOILED
    )
    assert text.startswith("# Replay: worse") and "is not known, so this says nothing of whole runs" in text.replace(
        "\n", " "
    )
    assert capsys.readouterr().out == text + "\n"


def test_a_prompt_that_is_no_worse_passes(cases: list[str], server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*cases, "same.txt", "--samples", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "not shown to be worse" and found["tokens"] == 9 * 80
    assert [(t["question"], t["difference"]) for t in found["tests"]] == [("guards", 0.0), ("tool calls", 0.0)]
    asked = [s.json for s in server.seen if s.method == "POST"]
    assert len(asked) == 80 and {b["n"] for b in asked} == {2} and not any("kv_transfer_params" in b for b in asked)


def test_a_users_own_function(cases: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text("def score(call, message):\n    return float('find' in str(message))\n")
    assert main([*cases, "worse.txt", "--by", "mine:score", "--json", "--control", "recorded"]) == 0
    assert main([*cases, "worse.txt", "--samples", "1", "--control", "recorded"]) == 0
    said, _, shown = capsys.readouterr().out.partition("# Replay: not shown to be worse (only guards were compared)")
    (_, mine) = json.loads(said)["tests"]
    assert shown and {w["episode"] for w in mine["worst"]} == set(SPOILED) and mine["question"] == "mine:score"


def test_what_fails_is_said_in_one_line_and_in_the_reports(
    cases: list[str], server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("boom.py").write_text("def score(call, message):\n    return [][0]\n")
    Path("broken.py").write_text("1 / 0\n")
    Path("empty.jsonl").write_text("")
    told = ["--junit", "new/r.xml", "--markdown", "new/deep/r.md"]
    for argv, said in (
        ([*cases, "same.txt", "--samples", "1", "--by", "boom:score"], "boom:score failed at call 0 of"),
        ([*cases, "same.txt", "--by", "broken:score"], "ZeroDivisionError: division by zero"),
        (["replay", "empty.jsonl", "--url", server.url, "--against", "m"], "empty.jsonl: no cases in it"),
        (["replay", "nobodys", "--url", "http://127.0.0.1:9", "--against", "m"], "nobodys: "),
    ):
        assert main([*argv, *told]) == 2
        err = capsys.readouterr().err
        suite = ET.fromstring(Path("new/r.xml").read_text())  # noqa: S314 - our own
        assert err.count("\n") == 1 and said in err and said in str(next(suite.iter("error")).get("message"))
        assert (suite.get("tests"), suite.get("errors")) == ("1", "1") and said in Path("new/deep/r.md").read_text()
    server.seen.clear()
    assert main([*cases, "same.txt", "--junit", "cases.jsonl/r.xml"]) == 2 and not server.seen


def test_no_verdict_is_no_success(cases: list[str], server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*cases, "same.txt", "--tokens", "100", "--concurrency", "1"]) == 2
    said = capsys.readouterr().out
    assert "No verdict: 6 cases cannot show even a total loss" in said and "34 cases were not begun" in said
    server.routes[CHAT] = lambda _: Reply({"error": "no such model"}, 404)
    assert main([*cases, "m9"]) == 2
    assert "No verdict: 40 of 40 cases have no answer" in capsys.readouterr().out
    assert main(["replay", "nobodys", "--url", server.url, "--against", "m9"]) == 2  # the proxy has no such set
    assert "slipstream replay: nobodys" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--run", "recorded"]])
def test_a_version_that_there_is_not_is_said_before_anything_is_asked(
    cases: list[str], server: Server, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    server.on("GET", "/adapters", {"adapters": [], "live": {}})
    server.seen.clear()
    assert main([*cases, "NOPE@1", *more]) == 2
    assert "there is no version NOPE@1" in capsys.readouterr().err
    assert not [seen for seen in server.seen if seen.method == "POST"]


def test_a_set_of_the_store(cases: list[str], server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    case = {"key": "-", "episode": "e", "task": "t", "tags": {}, "reward": 1.0, "calls": 1, "since": 1, "added": 1.0}
    kept = {"name": "s1", "version": 2, "cases": 40, "changed": 1.0}
    details = [case | {"episode": f"e{n}", "detail": json.loads(json_line(recorded(f"e{n}")))} for n in range(40)]
    server.on("GET", "/cases/s1", {"set": kept, "version": 2, "cases": details, "next": None})
    assert main(["replay", "s1", "--url", server.url, "--against", "worse.txt", "--samples", "1"]) == 1
    assert "# Replay: worse" in capsys.readouterr().out
