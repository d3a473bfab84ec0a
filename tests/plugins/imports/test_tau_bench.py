"""Results of tau-bench."""

from __future__ import annotations

from tests.support.logs import ASK, END, read, replied


def test_the_user_s_own_tools_are_not_the_agent_s(tmp_path):
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    messages = [
        {"role": "assistant", "content": "Hi! How can I help?"},
        {
            "role": "user",
            "content": None,
            "tool_calls": [{"id": "u", "name": "look", "arguments": {}, "requestor": "user"}],
        },
        {"role": "tool", "id": "u", "content": "x", "requestor": "user"},
        ASK,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "name": "ls", "arguments": {}}],
            "usage": usage,
        },
        {"role": "tool", "id": "c", "content": "y", "requestor": "assistant"},
        {**END, "usage": usage},
    ]
    row = {
        "id": "s",
        "task_id": "7",
        "messages": messages,
        "reward_info": {"reward": 1.0, "reward_breakdown": {"DB": 1.0}},
    }
    (body,), report = read(tmp_path, row)
    assert (body["reward"], body["metrics"]) == (1.0, {"db": 1.0})
    assert len(replied(body)) == 2 and report.dropped.total() == 2


def test_a_reward_of_a_wrong_type_is_refused(tmp_path):
    assert "log.jsonl:1: reward" in read(tmp_path, {"task_id": 0, "reward": [1], "traj": [ASK, END]})[1].refused[0]
