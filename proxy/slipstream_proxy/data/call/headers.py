"""Header lines that the proxy adds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from slipstream_proxy.data.call.step import CallStep

if TYPE_CHECKING:
    from slipstream_proxy.data.call.call import ActiveCall

JSON: Final = b"application/json"
_CONTENT_TYPE: Final = re.compile(rb"^content-type: *([^;\r\n]*)[^\r\n]*\r\n", re.IGNORECASE | re.MULTILINE)
NOT_FOUND: Final = 404
"""Nobody answered: what the engine does not know is no adapter."""
_adapter_lines: Final[dict[str, bytes]] = {}


def as_json(fields: bytes) -> bytes:
    """Header lines that say JSON: the body reads as JSON, and curl calls all bodies forms unless it is told otherwise.
    An engine takes no other type.
    """
    kind = _CONTENT_TYPE.search(fields)
    if kind is not None and kind[1].lower() == JSON:  # with a charset
        return fields
    return b"%bContent-Type: %b\r\n" % (_CONTENT_TYPE.sub(b"", fields), JSON)


def adapter_line(name: str) -> bytes:
    """The header that says which adapter answered; whatever a name holds, it is one line."""
    shown = name.encode("ascii", "replace").replace(b"\n", b"?").replace(b"\r", b"?")
    line = b"x-slipstream-adapter: %b\r\n" % shown
    if len(_adapter_lines) < 1024 and len(name) < 256:
        _adapter_lines[name] = line
    return line


class ProxyHeaders(CallStep):
    """The engine gets the call's id as X-Request-Id; the client gets the ids of episode and call, and the adapter."""

    def forward(self, call: ActiveCall, fields: bytes) -> bytes:
        if call.request.headers.get(b"content-type") != JSON:
            fields = as_json(fields)
        if b"x-request-id" in call.request.headers:
            return fields
        return b"%bX-Request-Id: %b\r\n" % (fields, call.id.encode())

    def response_head(self, call: ActiveCall, fields: bytes) -> bytes:
        if call.episode is not None and call.split != "off":
            episode, own = call.episode.id.encode(), call.id.encode()
            fields = b"%bx-slipstream-episode: %b\r\nx-slipstream-call: %b\r\n" % (fields, episode, own)
        if call.adapter and not (call.reply.head is not None and call.reply.head.status == NOT_FOUND):
            fields += _adapter_lines.get(call.adapter) or adapter_line(call.adapter)
        return fields
