"""OpenAI's responses, as recorded."""

from __future__ import annotations

import json
from typing import Any

from tests.support.dialects import head
from tests.support.fake_engine import dump, sse

from slipstream_proxy.dialects import BY_NAME


def test_of_a_stream_the_events_with_a_response_count() -> None:
    said = [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]} for text in "ab"
    ]
    first, last = ({"id": "r", "status": "completed", "output": [item]} for item in said)
    delta = {"type": "response.output_text.delta", "delta": '"response": {"output": []}', "item_id": "m"}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": first},
        delta,
        {"type": "response.completed", "response": last},
    ]
    dialect = BY_NAME["responses"]
    whole = dialect.said(dump(last).encode(), stream=False)
    assert len(whole.messages) == 1
    for end in ("\n\n", "\r\n\r\n"):
        reply = "".join(f"event: {e['type']}\ndata: {dump(e)}{end}" for e in [*events, delta]).encode()
        assert dialect.said(reply, stream=True) == whole
        assert dialect.said(reply.replace(b'"response":', b'"re\\u0073ponse":'), stream=True) == whole
        broken = reply + f'data: {{"type": "error", "message": "out of memory"}}{end}'.encode()
        assert dialect.parse(b"{}", broken, head(dialect="responses", stream=True)).error == "out of memory"


def test_responses():
    dialect = BY_NAME["responses"]
    output = [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    ]
    read = dialect.parse(
        b'{"input":"x","instructions":"s"}',
        dump({"status": "completed", "output": output}).encode(),
        head(dialect="responses", note="n"),
    )
    assert [m["role"] for m in read.messages] == ["system", "user"] and read.choices[0].message == output
    reply = b"event: response.completed\n" + sse(
        {"type": "response.completed", "response": {"status": "completed", "output": output}}
    )
    assert dialect.said(reply, stream=True).tool_ids == ["c1"]
    assert json.loads(dialect.error(400, "m", "k"))["error"]["message"] == "m"
    assert b"event: error" in dialect.error_event(502, "m", "k")
