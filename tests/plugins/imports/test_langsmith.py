"""LangSmith's runs."""

from __future__ import annotations

from tests.support.logs import ASK, END, read, replied

RUN = {"id": "a", "trace_id": "t", "run_type": "llm", "name": "chat", "start_time": "2026-05-01T10:00:00", "inputs": {"messages": [ASK]}, "outputs": {"choices": [{"message": END}]}}  # fmt: skip


def test_feedback_is_a_reward(tmp_path):
    told = {"reward": {"n": 2, "avg": 0.25}, "note": {"n": 1, "avg": None}}
    (body,), report = read(tmp_path, {**RUN, "feedback_stats": told})
    assert body["reward"] == 0.25 and replied(body) == [END]
    assert ("feedback note", "it has no mean that is a number") in report.dropped


def test_a_call_that_failed_is_said(tmp_path):
    bodies, report = read(tmp_path, {**RUN, "error": "429"})
    assert not bodies and ("a model call", "it failed") in report.dropped


def test_children_are_of_their_root_s_trace(tmp_path):
    child = {k: v for k, v in RUN.items() if k != "trace_id"}
    (body,), _ = read(tmp_path, {"id": "root", "run_type": "chain", "name": "n", "child_runs": [child]})
    assert (body["id"], body["task"]) == ("langsmith-root", "n")


def test_examples_are_runs_of_one_call(tmp_path):
    (body,), _ = read(tmp_path, {"id": "e", "inputs": {"input": "hi"}, "outputs": {"output": "done"}})
    assert [m["content"] for m in body["messages"]] == ["hi", "done"]


def test_tokens_that_stand_in_the_reply_come_along(tmp_path):
    said = {"lc": 1, "id": ["langchain", "AIMessage"], "kwargs": {"content": "done", "usage_metadata": {"input_tokens": 3, "output_tokens": 2}}}  # fmt: skip
    row = {"id": "a", "trace_id": "t", "run_type": "llm", "inputs": {"messages": [[ASK]]}, "outputs": {"generations": [[{"text": "done", "message": said}]]}}  # fmt: skip
    (body,), _ = read(tmp_path, row)
    assert (body["replies"][0]["prompt_tokens"], body["replies"][0]["completion_tokens"]) == (3, 2)


def test_feedback_in_rows_of_its_own_finds_its_run(tmp_path):
    told = {"id": "f", "run_id": "a", "trace_id": "t", "key": "reward", "score": True}
    (body,), report = read(tmp_path, {**told, "score": None}, RUN, told)
    assert body["reward"] == 1.0 and report.dropped == {("feedback reward", "it has no score that is a number"): 1}
