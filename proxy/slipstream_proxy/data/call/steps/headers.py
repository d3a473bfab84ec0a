"""Header lines that the proxy adds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from slipstream_proxy.data.call.step import CallStep

if TYPE_CHECKING:
    from slipstream_proxy.data.call.parts import Call
    from slipstream_proxy.data.engines.live import LiveView

JSON_TYPE: Final = b"application/json"
FORM_TYPE: Final = b"application/x-www-form-urlencoded"
_CONTENT_TYPE: Final = re.compile(rb"^content-type: *([^;\r\n]*)[^\r\n]*\r\n", re.IGNORECASE | re.MULTILINE)
NOT_FOUND: Final = 404
"""Nobody answered: what the engine does not know is no adapter."""
_NO_HEADER_BYTES: Final = re.compile(rb"[^\x20-\x7e]")
MAX_ADAPTER_CHARS: Final = 256
"""Of a name that the header shows. An agent may ask for any model, and a server that ignores names answers it."""
_adapter_lines: Final[dict[str, bytes]] = {}


def as_json(fields: bytes) -> bytes:
    """Header lines that say JSON where the client says nothing, or that it is a form: curl calls all bodies forms
    unless it is told otherwise. What to do with another type is the engine's affair.
    """
    kind = _CONTENT_TYPE.search(fields)
    if kind is not None and kind[1].strip().lower() not in (b"", FORM_TYPE):
        return fields
    return b"%bContent-Type: %b\r\n" % (_CONTENT_TYPE.sub(b"", fields), JSON_TYPE)


def adapter_line(name: str) -> bytes:
    """The header that says which adapter answered; whatever a name holds, it is one line."""
    shown = _NO_HEADER_BYTES.sub(b"?", name[:MAX_ADAPTER_CHARS].encode("ascii", "replace"))
    line = b"x-slipstream-adapter: %b\r\n" % shown
    if len(_adapter_lines) < 1024 and len(name) < MAX_ADAPTER_CHARS:
        _adapter_lines[name] = line
    return line


class ProxyHeaders(CallStep):
    """The engine gets the call's id as X-Request-Id; the client gets the ids of episode and call, the adapter,
    and the sampling that replaced its own. A router gets the episode, so that it keeps it at one engine.
    """

    def __init__(self, live: LiveView, session_header: str) -> None:
        self._live, self._header = live, session_header.encode("ascii")
        self._theirs = re.compile(rb"^%b:[^\r\n]*\r\n" % re.escape(self._header), re.IGNORECASE | re.MULTILINE)

    def forward(self, call: Call, fields: bytes) -> bytes:
        if not call.asked.request.is_json:
            fields = as_json(fields)
        if call.asked.episode is not None and self._live.is_router(call.route.upstream):
            own = call.asked.episode.id.encode()
            fields = b"%b%b: %b\r\n" % (self._theirs.sub(b"", fields), self._header, own)
        if call.asked.request.has_id:
            return fields
        return b"%bX-Request-Id: %b\r\n" % (fields, call.asked.id_bytes)

    def response_head(self, call: Call, fields: bytes) -> bytes:
        if call.asked.episode is not None and call.asked.split != "off":
            episode, own = call.asked.episode.id.encode(), call.asked.id_bytes
            fields = b"%bx-slipstream-episode: %b\r\nx-slipstream-call: %b\r\n" % (fields, episode, own)
        if call.route.adapter and not (call.reply.head is not None and call.reply.head.status == NOT_FOUND):
            fields = b"%b%b" % (fields, _adapter_lines.get(call.route.adapter) or adapter_line(call.route.adapter))
        if call.asked.target.shown:
            fields = b"%bx-slipstream-sampling: %b\r\n" % (fields, call.asked.target.shown.encode())
        return fields
