"""``include_reasoning: false``: what vLLM's reasoning parsers send for it, and what we make of the reply that shows the reasoning.

The pairs were taken from vLLM 0.32 with the hermes tool parser and each of two reasoning parsers, on a small model that was made to think: the
engine's replies to the client's own request (``bare``) and to ours (``engine``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.comparing import level

from slipstream_proxy.dialects import BY_NAME
from slipstream_proxy.dialects.base import EventCutter

CHAT = BY_NAME["chat"]
PAIRS = json.loads((Path(__file__).parent / "hidden_reasoning.json").read_text())


def read(reply: bytes) -> Any:
    """The reply or its events, ids and times aside; the order of keys counts."""
    if reply.startswith(b"data: "):
        events = EventCutter().feed(reply)
        return [json.dumps(level(json.loads(e[6:]))) if e.startswith(b"data: {") else e for e in events]
    return json.dumps(level(json.loads(reply)))


@pytest.mark.parametrize("pair", PAIRS, ids=[f"{i}-{p['parser']}" for i, p in enumerate(PAIRS)])
def test_the_client_sees_what_the_engine_would_have_sent(pair):
    made = CHAT.inject(pair["request"])
    reply = pair["engine"].encode()
    assert made.hide.reasoning and made.note is None
    if pair["request"].get("stream"):
        shown = b"".join(s for e in EventCutter().feed(reply) if (s := CHAT.event(e, made.hide)) is not None)
    else:
        shown = CHAT.whole(reply, made.hide)
    assert read(shown) == read(pair["bare"].encode())
    assert "token_ids" in pair["engine"] and b'token_ids":[' not in shown


def test_there_are_pairs_with_all_that_a_reply_can_have():
    for said in ('"reasoning":"', '"tool_calls":[{"id"', '"index":1'):
        assert {bool(p["request"].get("stream")) for p in PAIRS if said in p["engine"]} == {True, False}
