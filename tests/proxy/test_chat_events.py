from __future__ import annotations

from typing import Any

from slipstream_proxy.dialects.through_chat import ChatEvents


class Said(ChatEvents):
    def _end(self) -> bytes | None:
        return b"end"

    def _error(self, error: dict[str, Any]) -> bytes:
        return str(error["message"]).encode()

    def _events(self, read: dict[str, Any]) -> list[bytes]:
        return [str(n).encode() for n in read["says"]]


def test_what_becomes_of_a_chat_event() -> None:
    said = Said()
    assert said.event(b'data: {"says": [1, 2], "choices": [{}]}\n\n') == b"12"
    assert said.event(b'data: {"says": []}\n\n') is None
    assert said.event(b": a comment\n\n") is None
    assert said.event(b"data: [DONE]\n\n") == b"end"


def test_no_end_follows_an_error() -> None:
    said = Said()
    assert said.event(b'data: {"error": {"message": "broken"}}\n\n') == b"broken"
    assert said.event(b"data: [DONE]\n\n") is None
