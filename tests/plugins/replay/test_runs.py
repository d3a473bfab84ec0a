"""Whole runs, played again against a server that obeys its system prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.replayed import recorded, tool_message
from tests.support.server import Reply, Seen, Server

from slipstream.cli import main
from slipstream_replay.cases import json_line
from slipstream_replay.runs import RecordedTools, RunStopped, with_prompt

TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {}}}]


def run_of(name: str) -> Any:
    """Two calls: the tool ``find`` with the run's name, and the answer that it gave."""
    episode = recorded(name)
    first = episode.call_list[0]
    first.tools = TOOLS
    result = {"role": "tool", "tool_call_id": "t", "content": f"it is {name}"}
    said = {"role": "assistant", "content": f"it is {name}"}
    second = first.model_copy(
        update={"id": f"d-{name}", "number": 1, "messages": [*first.messages, *first.reply, result], "reply": [said]}
    )
    episode.call_list.append(second)
    return episode


def model(seen: Seen) -> Reply:
    """It finds, then says what it found. Under "Guess." it says something else; under "Wander." it uses another tool."""
    messages = seen.json["messages"]
    system, name = messages[0]["content"], messages[1]["content"].removeprefix("task ")
    if messages[-1]["role"] == "tool":
        message: dict[str, Any] = {"role": "assistant", "content": messages[-1]["content"]}
    elif system == "Guess.":
        message = {"role": "assistant", "content": "a guess"}
    else:
        lost = system == "Wander." or (system == "Half." and int(name[1:]) >= 14)
        message = tool_message("wander" if lost else "find", name=name)
    return Reply({"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"total_tokens": 5}})


@pytest.fixture
def argv(server: Server) -> list[str]:
    server.routes["POST", "/v1/chat/completions"] = model
    Path("cases.jsonl").write_text("".join(json_line(run_of(f"e{n}")) + "\n" for n in range(14)))
    for name in ("Guess.", "Wander.", "Find."):
        Path(f"{name}txt").write_text(name)
    score = "def score(call, message):\n    return float(message.get('content') == call.reply[0]['content'])\n"
    Path("run_score.py").write_text(score)
    return ["replay", "cases.jsonl", "--url", server.url, "--samples", "1", "--json", "--by", "run_score:score"]


def test_recorded_tools_answer_where_a_call_repeats() -> None:
    tools = RecordedTools(run_of("e1"))
    assert tools.result("find", {"name": "e1"}) == tools.result("find", '{"name": "e1"}') == "it is e1"
    with pytest.raises(RunStopped, match="no call of the tool find with these arguments"):
        tools.result("find", {"name": "e2"})
    with pytest.raises(RunStopped, match="no call of the tool drop at all"):
        tools.result("drop", {})


def test_with_the_tools_of_the_record(argv: list[str], server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*argv, "--run", "recorded", "--against", "Find.txt"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(t["question"], t["cases"], t["difference"]) for t in found["tests"]] == [("runs", 14, 0.0)]
    assert found["exact_steps"] == 0, "no step was asked by its ids"
    assert found["tokens"] == 14 * 2 * 2 * 5 and "Each task was played again" in found["remarks"][-1]
    calls = [s for s in server.seen if s.method == "POST"]
    assert {s.headers["x-slipstream-split"] for s in calls} == {"eval"}
    assert len({s.headers["x-slipstream-episode"] for s in calls}) == 28  # a run of its own each
    assert main([*argv, "--run", "recorded", "--against", "Guess.txt"]) == 1
    assert json.loads(capsys.readouterr().out)["tests"][0]["difference"] == -1.0
    assert main([*argv, "--run", "recorded", "--against", "Wander.txt"]) == 2  # the world after it is not known
    said = json.loads(capsys.readouterr().out)["remarks"]
    assert "14 cases are not compared: the record has no call of the tool wander at all" in said


def test_what_is_left_of_half_the_runs_is_no_verdict(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("cases.jsonl").write_text("".join(json_line(run_of(f"e{n}")) + "\n" for n in range(30)))
    Path("Half.txt").write_text("Half.")
    assert main([*argv, "--run", "recorded", "--against", "Half.txt"]) == 2
    assert "No verdict: 16 of 30 cases were not compared." in json.loads(capsys.readouterr().out)["remarks"]


def test_a_users_own_agent(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("run_agent.py").write_text(
        """import httpx
def play(episode, base_url, tools):
    messages = episode.call_list[0].messages
    said = httpx.post(base_url + "/chat/completions", verify=False, json={"model": "whatever", "messages": messages}).json()
    message = said["choices"][0]["message"]
    if "tool_calls" not in message:
        raise RuntimeError("the agent breaks")
    return float(tools.result("find", message["tool_calls"][0]["function"]["arguments"]) == "it is " + episode.id)
"""
    )
    assert main([*argv, "--run", "run_agent:play", "--against", "Find.txt"]) == 0
    assert (
        main([*argv, "--run", "run_agent:play", "--against", "Guess.txt"]) == 1
    )  # what breaks it alone is its failure
    Path("run_flaky.py").write_text(
        """import hashlib
def play(episode, base_url):
    if hashlib.sha256(base_url.encode()).digest()[0] < 26:
        raise RuntimeError("one run in ten")
    return float(int(episode.id[1:]) % 3 > 0)
"""
    )
    Path("cases.jsonl").write_text("".join(json_line(run_of(f"e{n}")) + "\n" for n in range(100)))
    told = [*argv[:5], "4", "--json", "--run", "run_flaky:play", "--against", "m"]
    assert main(told) == 0  # it breaks both sides alike
    capsys.readouterr()
    Path("run_bad.py").write_text("def play(episode, base_url):\n    return 'good'\n")
    assert main([*argv, "--run", "run_bad:play", "--against", "Find.txt"]) == 2


def test_a_run_whose_calls_were_all_refused_has_no_worth(
    argv: list[str], server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its agent gives a number all the same."""
    Path("run_deaf.py").write_text(
        """import httpx
def play(episode, base_url):
    body = {"model": "whatever", "messages": episode.call_list[0].messages}
    httpx.post(base_url + "/chat/completions", verify=False, json=body)
    return 1.0
"""
    )
    server.on("POST", "/v1/chat/completions", {"error": {"message": "tools must not be empty"}}, 400)
    assert main([*argv, "--run", "run_deaf:play", "--against", "Find.txt"]) == 2
    assert "tools must not be empty" in str(json.loads(capsys.readouterr().out))


def test_an_agent_that_reads_the_changed_prompt_does_not_give_it_to_the_control(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("run_reads.py").write_text(
        """import httpx
from pathlib import Path
def play(episode, base_url):
    messages = [{"role": "system", "content": Path("Guess.txt").read_text()}, *episode.call_list[0].messages[1:]]
    said = httpx.post(base_url + "/chat/completions", verify=False, json={"messages": messages}).json()
    return float("tool_calls" in said["choices"][0]["message"])
"""
    )
    told = [*argv, "--run", "run_reads:play", "--against", "Guess.txt"]
    assert main(told) == 1
    assert json.loads(capsys.readouterr().out)["tests"][0]["difference"] == -1.0
    bare = [run_of(f"e{n}") for n in range(14)]
    for call in (c for e in bare for c in e.call_list):
        call.messages = call.messages[1:]
    Path("cases.jsonl").write_text("".join(json_line(e) + "\n" for e in bare))
    Path("run_ones.py").write_text("def play(episode, base_url):\n    return 1.0\n")
    told = [*argv, "--run", "run_ones:play", "--against"]
    assert main([*told, "Guess.txt"]) == 0
    note = "14 cases were recorded without a system prompt. Their control got your agent's own."
    assert note in json.loads(capsys.readouterr().out)["remarks"]
    assert main([*told, "m9"]) == 0
    assert "Both sides got your agent's own system prompt." in json.loads(capsys.readouterr().out)["remarks"]


@pytest.mark.parametrize(("path", "body", "given"), [
    ("messages", {"system": "a", "messages": []}, {"system": "p", "messages": []}),
    ("responses", {"instructions": "a", "input": "hi"}, {"instructions": "p", "input": "hi"}),
    ("responses", {"input": [{"role": "developer", "content": "a"}]}, {"input": [{"role": "developer", "content": "p"}]}),
    ("chat/completions", {"messages": [{"role": "user", "content": "a"}]}, None),
])  # fmt: skip
def test_a_prompt_goes_where_the_wire_format_has_it(path: str, body: Any, given: Any) -> None:
    assert with_prompt(body, path, "p", always=False) == (given or body)
    at_once = with_prompt(body, path, "p", always=True)
    assert at_once == (given or {"messages": [{"role": "system", "content": "p"}, *body["messages"]]})


def test_a_command(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("agent.py").write_text(
        """import json, os, urllib.request
def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request))
task = json.load(open(os.environ["SLIPSTREAM_RUN_TASK"]))
said = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", {"messages": task["call_list"][0]["messages"]})
call = said["choices"][0]["message"]["tool_calls"][0]["function"]
result = post(os.environ["SLIPSTREAM_TOOLS_URL"], {"name": call["name"], "arguments": call["arguments"]})["result"]
print(json.dumps({"reward": float(result == "it is " + task["id"])}))
"""
    )
    lines = Path("cases.jsonl").read_text().splitlines(keepends=True)
    Path("cases.jsonl").write_text("".join(lines[:2]))
    assert main([*argv, "--run", "python agent.py", "--against", "Find.txt"]) == 2  # too few for a verdict
    found = json.loads(capsys.readouterr().out)
    assert (found["tests"][0]["cases"], found["tests"][0]["difference"]) == (2, 0.0)
    assert main([*argv, "--run", "python agent.py", "--against", "Wander.txt"]) == 2
    assert "no call of the tool wander" in capsys.readouterr().out


def test_a_run_that_a_proxy_stored_is_over_when_it_ends(argv: list[str], server: Server) -> None:
    """Until it is, it keeps its version in the engine: without a word for as long as an agent may be idle."""

    def stored(seen: Seen) -> Reply:
        found = model(seen)
        return Reply(found.body, found.status, {"x-slipstream-episode": seen.headers["x-slipstream-episode"]})

    server.routes["POST", "/v1/chat/completions"] = stored
    main([*argv, "--against", "Find.txt", "--run", "recorded"])
    runs = {s.headers["x-slipstream-episode"] for s in server.asked("POST", "/v1/chat/completions")}
    ended = [s.path.split("/")[-2] for s in server.seen if s.path.endswith("/done")]
    assert len(runs) == 28 and sorted(ended) == sorted(runs)
