"""What OpenAI's own formats share."""

from __future__ import annotations

from typing import Final

from slipstream_proxy.dialects.base import Dialect, Hide, is_done, openai_error
from slipstream_proxy.json_types import JsonObject

PACKED: Final = Hide(packed=True)


def ask_for_ids(body: JsonObject) -> tuple[bool, str | None]:
    """Whether they are to be hidden, because the client did not ask, too; and why they cannot be asked for."""
    asked = body.get("return_token_ids")
    if asked is None or asked is False:
        body["return_token_ids"] = True
        return True, None
    return False, None if asked is True else "unreadable return_token_ids"


class OpenAI(Dialect):
    """Errors, and how a stream ends."""

    def terminal(self, event: bytes) -> bool:
        return is_done(event)

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> bytes:
        return openai_error(status, message, kind, param)

    def error_event(self, status: int, message: str, kind: str) -> bytes:
        return b"data: " + openai_error(status, message, kind) + b"\n\n"
