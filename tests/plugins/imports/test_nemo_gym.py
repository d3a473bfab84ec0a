"""NeMo Gym's rollouts."""

from __future__ import annotations

from tests.support.logs import read, replied

OUTPUT = [
    {"type": "function_call", "call_id": "c", "name": "ls", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "x"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
]
ROW = {
    "responses_create_params": {"input": "hi", "instructions": "Be good."},
    "response": {"output": OUTPUT},
    "reward": 0.5,
}


def test_turns_and_other_figures(tmp_path):
    (body,), _ = read(tmp_path, {**ROW, "accuracy": True, "_ng_task_index": 3, "_ng_rollout_index": 1})
    assert [m["role"] for m in body["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert (body["reward"], body["metrics"], body["task"], body["tags"]["rollout"]) == (
        0.5,
        {"accuracy": 1.0},
        "3",
        "1",
    )
    assert len(replied(body)) == 2


def test_one_without_output_is_refused(tmp_path):
    assert "response: it has no output" in read(tmp_path, {**ROW, "response": {}})[1].refused[0]
