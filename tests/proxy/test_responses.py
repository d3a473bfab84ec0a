"""OpenAI's responses, as recorded."""

from __future__ import annotations

import json

from tests.support.dialects import head
from tests.support.fake_engine import dump, sse

from slipstream_proxy.dialects import BY_NAME


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
