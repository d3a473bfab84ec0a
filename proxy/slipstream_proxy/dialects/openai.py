"""What OpenAI's own formats share."""

from __future__ import annotations

from slipstream_proxy.dialects.base import Dialect, openai_error


class OpenAI(Dialect):
    """Errors, and how a stream ends."""

    def terminal(self, event: bytes) -> bool:
        return event.startswith(b"data: [DONE]") or event.startswith(b"data:[DONE]")  # noqa: PIE810 - compiled, a tuple costs a call

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> bytes:
        return openai_error(status, message, kind, param)

    def error_event(self, status: int, message: str, kind: str) -> bytes:
        return b"data: " + openai_error(status, message, kind) + b"\n\n"
