"""Requests with their responses."""

from __future__ import annotations

import json

import pytest
from tests.support.logs import ASK, END, read, replied


def test_bodies_as_text_and_in_a_frame(tmp_path):
    request = {"model": "m", "messages": [ASK]}
    response = {"choices": [{"message": END}], "created": 7, "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    rows = (
        {"request": json.dumps(request), "response": response},
        {"request": {"body": request}, "response": {"body": response}},
    )
    bodies, _ = read(tmp_path, *rows)
    for body in bodies:
        assert (body["model"], body["at"], replied(body)) == ("m", 7.0, [END])
        assert body["replies"][0]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("request_", "response"),
    [
        ({"system": "s", "messages": [ASK]}, {"role": "assistant", "content": [{"type": "text", "text": "done"}], "usage": {"output_tokens": 1}}),
        ({"instructions": "s", "input": "hi"}, {"output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}]}),
        ({"system_instruction": {"parts": [{"text": "s"}]}, "contents": [{"role": "user", "parts": [{"text": "hi"}]}]}, {"candidates": [{"content": {"parts": [{"text": "done"}]}}]}),
    ],
)  # fmt: skip
def test_other_apis(tmp_path, request_, response):
    (body,), _ = read(tmp_path, {"request": request_, "response": response})
    assert [m["content"] for m in body["messages"]] == ["s", "hi", "done"]


def test_what_is_none_says_so(tmp_path):
    _, report = read(
        tmp_path,
        {"request": {"messages": [ASK]}, "response": {"error": {"message": "quota"}}},
        {"request": [], "response": {}},
    )
    assert "request and response are no chat completion: the response has no reply: quota" in report.refused[0]
    assert len(report.refused) == 2
