"""What OpenAI's own formats share."""

from __future__ import annotations

from slipstream_proxy.dialects.base import openai_error


class OpenAI:
    """Errors, and how a stream ends."""

    def terminal(self, event: bytes) -> bool:
        return event.startswith((b"data: [DONE]", b"data:[DONE]"))

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> bytes:
        return openai_error(status, message, kind, param)

    def error_event(self, status: int, message: str, kind: str) -> bytes:
        return b"data: " + openai_error(status, message, kind) + b"\n\n"
