"""Header lines that the proxy adds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream_proxy.data.call.step import CallStep

if TYPE_CHECKING:
    from slipstream_proxy.data.call.call import ActiveCall

_adapter_lines: Final[dict[str, bytes]] = {}


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
        if b"x-request-id" in call.request.headers:
            return fields
        return b"%bX-Request-Id: %b\r\n" % (fields, call.id.encode())

    def response_head(self, call: ActiveCall, fields: bytes) -> bytes:
        if call.episode is not None and call.split != "off":
            ids = call.episode.id.encode(), call.id.encode()
            fields = b"%bx-slipstream-episode: %b\r\nx-slipstream-call: %b\r\n" % (fields, *ids)
        if call.adapter:
            fields += _adapter_lines.get(call.adapter) or adapter_line(call.adapter)
        return fields
