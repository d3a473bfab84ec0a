"""A stream of chat events on its way to another format."""

from __future__ import annotations

from slipstream_proxy.dialects.base import event_data, loads
from slipstream_proxy.dialects.token_arrays import FIELD
from slipstream_proxy.json_types import JsonObject


class ChatEvents:
    """``event`` reads a chat event; what the format makes of it is the subclass's."""

    failed = False
    """The engine has said an error: no end follows."""

    def event(self, event: bytes) -> bytes | None:
        """The events that the engine would have sent for this one; None: none."""
        data = event_data(event)
        if data == b"[DONE]":
            return None if self.failed else self._end()
        if not data.startswith(b"{"):
            return None
        read = loads(data)
        if read.get("error") is not None:
            self.failed = True
            return self._error(read["error"])
        if FIELD in read and "choices" not in read:
            return None  # what was sampled, and nothing for the client
        return b"".join(self._events(read)) or None

    def _end(self) -> bytes | None:
        """None: nothing has begun."""
        raise NotImplementedError

    def _error(self, error: JsonObject) -> bytes:
        raise NotImplementedError

    def _events(self, read: JsonObject) -> list[bytes]:
        raise NotImplementedError
