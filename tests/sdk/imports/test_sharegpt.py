"""ShareGPT's conversations."""

from __future__ import annotations

from tests.support.logs import read, replied


def test_turns_that_are_not_trained_on(tmp_path):
    turns = [
        {"from": "human", "value": "hi"},
        {"from": "gpt", "value": "BAD", "train": False},
        {"from": "human", "value": "?"},
        {"from": "gpt", "value": "ok"},
    ]
    (body,), report = read(tmp_path, {"conversations": turns, "system": "s"})
    assert [m["content"] for m in replied(body)] == ["ok"] and body["messages"][0] == {"role": "system", "content": "s"}
    assert report.clean


def test_an_empty_one_is_refused(tmp_path):
    assert "log.jsonl:1: conversations" in read(tmp_path, {"conversations": []})[1].refused[0]
