"""Harbor's trajectories."""

from __future__ import annotations

from tests.support.logs import read, replied

STEPS = [
    {"step_id": 1, "source": "user", "message": "hi"},
    {"step_id": 2, "source": "agent", "message": "", "tool_calls": [{"tool_call_id": "c", "function_name": "ls", "arguments": {}}], "observation": {"results": [{"source_call_id": "c", "content": "x"}]}},
    {"step_id": 3, "source": "agent", "message": "done", "metrics": {"prompt_tokens": 3, "completion_token_ids": [1]}},
]  # fmt: skip
ROW = {
    "schema_version": "ATIF-v1.5",
    "session_id": "s",
    "agent": {"name": "a", "version": "1", "model_name": "m"},
    "steps": STEPS,
}


def test_steps_are_messages(tmp_path):
    (body,), report = read(tmp_path, {**ROW, "extra": {"reward": 1}})
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert (body["id"], body["reward"], body["model"], report.tool_calls) == ("atif-s", 1.0, "m", 1)
    assert "token ids and log-probabilities" in [what for what, _ in report.dropped]


def test_steps_that_no_model_said_are_context(tmp_path):
    copied = [{**STEPS[1], "is_copied_context": True}, {**STEPS[2], "llm_call_count": 0}, STEPS[2]]
    (body,), _ = read(tmp_path, {**ROW, "steps": [STEPS[0], *copied]})
    assert len(replied(body)) == 1 and len(body["messages"]) == 5


def test_an_unknown_side_is_refused(tmp_path):
    bodies, report = read(tmp_path, {**ROW, "steps": [{"source": "robot", "message": ""}]})
    assert not bodies and "log.jsonl:1: steps.source" in report.refused[0]
