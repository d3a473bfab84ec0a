"""A request's body as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from crc32c import crc32c

from slipstream_proxy.data.wire.http1 import digits
from slipstream_proxy.dialects.base import loads
from slipstream_proxy.json_types import JsonObject, has_long_integer, python_loads
from slipstream_proxy.parse_weight import too_heavy

Payload = JsonObject

_checksum: Final[Callable[[bytes], int]] = crc32c


def read_payload(body: bytes) -> Payload | None:
    """None: it is no JSON object, and the engine says what is wrong with it; or it is too heavy to be read here."""
    if too_heavy(body):
        return None
    try:
        read = loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(read, dict):
        return None
    return python_loads(body) if _has_long_integer(read) else read


def body_hash(body: bytes) -> bytes:
    """Tells the bodies of a client's retries apart. Checksum and length cost a hundredth of a cryptographic hash."""
    check: int = _checksum(body)
    return b"%b-%b" % (digits(len(body)), str(check).encode())


def _has_long_integer(body: Payload) -> bool:
    """Only looks where requests have them: a walk through whole conversations would cost more than all the rest."""
    tools, form, seed = body.get("tools"), body.get("response_format"), body.get("seed")
    if tools is None and form is None and seed is None:
        return False
    return any(value is not None and has_long_integer(value) for value in (tools, form, seed))
