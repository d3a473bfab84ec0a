"""LiteLLM's logs."""

from __future__ import annotations

from tests.support.logs import ASK, END, read, replied, whys

ROW = {"id": "a", "trace_id": "t", "call_type": "completion", "status": "success", "messages": [ASK], "response": {"choices": [{"message": END}]}, "startTime": 1777629600.0, "endTime": 1777629601.5, "prompt_tokens": 3, "completion_tokens": 1}  # fmt: skip


def test_a_payload_with_its_time_and_tokens(tmp_path):
    (body,), report = read(tmp_path, {"standard_logging_object": ROW})
    assert body["id"] == "litellm-t" and report.clean
    assert body["replies"] == [
        {"message": 1, "at": 1777629600.0, "seconds": 1.5, "prompt_tokens": 3, "completion_tokens": 1}
    ]


def test_a_failure_is_said(tmp_path):
    bodies, report = read(tmp_path, ROW, {**ROW, "id": "b", "status": "failure", "response": None})
    assert len(bodies) == 1 and ("a model call", "it failed") in report.dropped


def test_a_spend_log_without_messages_takes_the_request(tmp_path):
    row = {**ROW, "messages": "{}", "proxy_server_request": {"messages": [ASK], "tools": []}}
    (body,), _ = read(tmp_path, row)
    assert replied(body) == [END]


def test_redacted_messages_are_no_call(tmp_path):
    redacted = [{"role": "user", "content": "redacted-by-litellm"}]
    bodies, report = read(tmp_path, {"call_type": "acompletion", "id": "x", "messages": redacted, "response": "redacted-by-litellm"})  # fmt: skip
    assert not bodies and any("redacted" in why for why in whys(report))
