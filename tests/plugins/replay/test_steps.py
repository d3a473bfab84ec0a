from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.replayed import recorded
from tests.support.server import Reply, Seen, Server

from slipstream.errors import ConfigError
from slipstream_proxy.control.gate.detector import BettingDetector
from slipstream_replay import steps
from slipstream_replay.comparison import Questions, by_tools, calls_of, guard
from slipstream_replay.steps import ReplayBudget, Replayer, case_of, knowing, side_of


def test_a_side_by_words() -> None:
    Path("p.txt").write_text("Be short.\n")
    side = side_of(["http://host:9/v1/#m2", "p.txt", "temperature=0.5", "max_tokens=7"], "http://proxy/v1")
    assert (side.base, side.model, side.system) == ("http://host:9/v1", "m2", "Be short.")
    call = case_of(recorded("e1")).steps[0].call
    body = side.body(call, 3)
    assert body["messages"] == [{"role": "system", "content": "Be short."}, {"role": "user", "content": "task e1"}]
    assert (body["model"], body["n"], body["temperature"], body["max_tokens"]) == ("m2", 3, 0.5, 7)
    own = side_of([], "http://proxy/v1").body(call, 1)
    assert (own["messages"], own["temperature"], own["model"]) == (call.messages, 1.0, "m")
    assert call.messages[0]["content"] == "Use the tool."  # the record stays as it is


@pytest.mark.parametrize("words", [["nowhere.txt"], ["blank.txt"], ["temperature=warm"], ["recorded", "m2"]])
def test_a_side_that_cannot_be(words: list[str]) -> None:
    Path("blank.txt").write_text(" \n")
    with pytest.raises(ConfigError):
        side_of(words, "http://proxy/v1")


def replayer(server: Server, budget: ReplayBudget) -> Replayer:
    base = f"{server.url}/v1"
    return Replayer(
        side_of(["m2"], base), side_of(["recorded"], base), samples=3, concurrency=1, budget=budget, key="k"
    )


def test_an_upstream_that_gives_one_sample_is_asked_until_there_are_enough(server: Server) -> None:
    choice = {"message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
    server.routes["POST", "/v1/chat/completions"] = lambda _: Reply(
        {"choices": [choice], "usage": {"total_tokens": 10}}
    )
    budget = ReplayBudget(tokens=55)
    one = replayer(server, budget)
    begun = asyncio.run(one.run([case_of(recorded(f"e{n}")) for n in range(4)]))
    assert [len(c.steps[0].candidate) for c in begun] == [3, 3] and len(server.seen) == 6
    assert one.stopped == "the budget of 55 tokens is spent" and budget.spent == 60
    assert begun[0].steps[0].control[0]["message"]["tool_calls"]  # the record's own
    assert {s.headers["x-slipstream-split"] for s in server.seen} == {"off"}  # nobody trains on a replay
    assert len({s.headers["x-slipstream-episode"] for s in server.seen}) == 2  # nor is it a running conversation's call


def test_what_is_not_answered_is_said(server: Server) -> None:
    server.routes["POST", "/v1/chat/completions"] = lambda _: Reply({"error": "no such model"}, 404)
    (case,) = asyncio.run(replayer(server, ReplayBudget()).run([case_of(recorded("e1"))]))
    assert case.error is not None and "m2 answered 404" in case.error


RESPONSES_CALL = {
    "dialect": "responses",
    "messages": [{"role": "system", "content": "Use the tool."}, {"role": "user", "content": "task e1"}],
    "tools": [{"type": "function", "name": "find", "parameters": {}}],
    "reply": [[{"type": "function_call", "call_id": "c", "name": "find", "arguments": '{"name": "e1"}'}]],
    "finish_reason": "completed",
}


@pytest.mark.parametrize("dialect", ["responses", "messages", "gemini"])
def test_a_call_that_was_asked_as_a_chat_completion_is_asked_as_one_again(dialect: str) -> None:
    episode = recorded("e1")
    episode.call_list.append(episode.call_list[0].model_copy(update={"id": "c9", "dialect": dialect}))
    case = case_of(episode)
    assert [step.route for step in case.steps] == ["chat/completions"] * 2 and case.skipped == 0


def test_a_call_of_the_responses_format_is_asked_in_it(server: Server) -> None:
    """Where the engine's own route answered it: its items go there again, and its calls are compared as a chat's."""
    episode = recorded("e1")
    episode.call_list[0] = episode.call_list[0].model_copy(update=RESPONSES_CALL)
    case = case_of(episode)
    assert calls_of(case.steps[0].call.reply[0]) == [("find", {"name": "e1"})]
    answer = {"status": "completed", "output": RESPONSES_CALL["reply"][0], "usage": {"total_tokens": 5}}
    server.routes["POST", "/v1/responses"] = lambda _: Reply(answer)
    asyncio.run(replayer(server, ReplayBudget()).run([case]))
    assert case.error is None and [guard(r) for r in case.steps[0].candidate] == [None] * 3
    assert by_tools(case.steps[0].call, case.steps[0].candidate[0]["message"]) == 1.0
    body = server.seen[0].json
    assert (body["input"], body["tools"], body["store"]) == (
        RESPONSES_CALL["messages"], RESPONSES_CALL["tools"], False,
    )  # fmt: skip
    assert not {"messages", "n"} & body.keys() and server.seen[0].headers["x-slipstream-split"] == "off"


@pytest.mark.parametrize(
    "change",
    [
        {"untrainable_reason": "after an earlier response"},  # the record lacks what came before
        {"dialect": "messages", "reply": [{"role": "assistant", "content": [{"type": "text", "text": "x"}]}]},
        {"dialect": "completions"},
        {"reply": []},
    ],
)
def test_calls_that_cannot_be_asked_again_are_counted(change: dict[str, Any]) -> None:
    episode = recorded("e1")
    episode.call_list.append(episode.call_list[0].model_copy(update={"id": "c9", **RESPONSES_CALL, **change}))
    case = case_of(episode)
    assert (len(case.steps), case.skipped) == (1, 1)


@pytest.mark.parametrize(("version", "exact"), [("new", True), ("old", False)])
def test_a_vllm_gets_the_recorded_token_ids(server: Server, version: str, exact: bool) -> None:
    """One that is too old to take them answers to the messages, and the step says so."""

    def vllm(seen: Seen) -> Reply:
        ids = (seen.json.get("kv_transfer_params") or {}).get("prompt_token_ids")
        choice = {"message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
        return Reply({"choices": [choice], "prompt_token_ids": ids if version == "new" else [7]})

    server.routes["GET", "/v1/models"] = lambda _: Reply({"data": [{"id": "m", "owned_by": "vllm"}]})
    server.routes["POST", "/v1/chat/completions"] = vllm
    Path("p.txt").write_text("Be short.")
    base = f"{server.url}/v1"
    for words, sent in ((["m@3"], True), ([], True), (["other"], False), (["p.txt"], False)):
        episode = recorded("e1")
        episode.call_list[0].prompt_ids = [5, 6]
        side = asyncio.run(knowing(side_of(words, base), None))
        one = Replayer(side, side_of(["recorded"], base), samples=2, each=1, concurrency=9, budget=ReplayBudget())
        (case,) = asyncio.run(one.run([case_of(episode)]))
        assert len(case.steps[0].candidate) == 2 and case.steps[0].exact is (exact and sent)
        assert ("kv_transfer_params" in server.seen[-1].json) is sent and server.seen[-1].json["messages"]


def test_a_side_that_breaks_has_answered_badly(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "STEP_ATTEMPTS", 1)
    server.routes["POST", "/v1/chat/completions"] = lambda _: Reply({"error": "NaN"}, 500)
    (case,) = asyncio.run(replayer(server, ReplayBudget()).run([case_of(recorded("e1"))]))
    assert case.error is None and guard(case.steps[0].candidate[0]) == "error"


def test_a_control_that_breaks_is_no_reason_to_pass(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "STEP_ATTEMPTS", 1)
    said = {"choices": [{"message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]}
    server.routes["POST", "/v1/chat/completions"] = lambda seen: (
        Reply({"error": "NaN"}, 500) if seen.json["model"] == "m" else Reply(said)
    )
    url = f"{server.url}/v1"
    one = Replayer(side_of(["m2"], url), side_of([], url), samples=1, concurrency=1, budget=ReplayBudget())
    cases = asyncio.run(one.run([case_of(recorded(f"e{n}")) for n in range(30)]))
    questions = Questions(
        functools.partial(BettingDetector, lump=1.0, rate=0.0, shifts=False), 0.01, "f", lambda *_: 1.0
    )
    for case in cases:
        questions.see(case)
    assert not questions.worse and questions.short(0) == "30 of 30 cases have no answer of the control"


def test_a_request_that_gives_way_is_sent_again(server: Server) -> None:
    choice = {"message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
    server.routes["POST", "/v1/chat/completions"] = lambda _: Reply({"choices": [choice] * 3})
    turns = iter([0.0, None, None])

    @contextlib.asynccontextmanager
    async def turn() -> AsyncIterator[None]:
        async with asyncio.timeout(next(turns)):
            yield

    one = Replayer(
        side_of(["m2"], f"{server.url}/v1"),
        side_of(["recorded"], ""),
        samples=3,
        concurrency=1,
        budget=ReplayBudget(),
        turn=turn,
    )
    (case,) = asyncio.run(one.run([case_of(recorded("e1"))]))
    assert case.error is None and len(case.steps[0].candidate) == 3 and next(turns, "used") is None


def test_long_runs_are_asked_at_some_of_their_calls() -> None:
    episode = recorded("e1")
    episode.call_list = [episode.call_list[0].model_copy(update={"id": f"c{n}", "number": n}) for n in range(9)]
    assert [[s.call.number for s in case_of(episode, most).steps] for most in (1, 3, 9)] == [
        [0],
        [0, 4, 8],
        [*range(9)],
    ]
