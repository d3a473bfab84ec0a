"""ShareGPT's conversations."""

from __future__ import annotations

from tests.support.logs import ASK, END, read, replied


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


def test_items_and_pairs(tmp_path):
    asked = [{"from": "human", "value": "hi"}]
    (body,), _ = read(tmp_path, {"items": [*asked, {"from": "gpt", "value": "done"}]})
    assert replied(body) == [END]
    pair = {"chosen": {"from": "gpt", "value": "done"}, "rejected": {"from": "gpt", "value": "no"}}
    bodies, _ = read(tmp_path, {"conversations": asked, **pair})
    assert [(b["reward"], b["messages"][0]) for b in bodies] == [(1.0, ASK), (0.0, ASK)]
