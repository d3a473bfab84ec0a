"""Anthropic's messages, as recorded."""

from __future__ import annotations

from typing import Any

from tests.support.dialects import head
from tests.support.fake_engine import sse

from slipstream_proxy.dialects import BY_NAME


def test_messages_stream():
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "t1", "name": "f", "input": {}},
        },
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a":1}'}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    ]
    reply = b"".join(b"event: %b\n" % e["type"].encode() + sse(e) for e in events)
    dialect = BY_NAME["messages"]
    read = dialect.parse(
        b'{"messages":[{"role":"user","content":"x"}],"system":"s"}',
        reply,
        head(dialect="messages", stream=True, note="n"),
    )
    assert read.choices[0].message["content"] == [
        {"type": "text", "text": "hi"},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
    ]
    assert read.untrainable == "n" and len(read.messages) == 2 and dialect.said(reply, stream=True).tool_ids == ["t1"]
    assert dialect.terminal(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
