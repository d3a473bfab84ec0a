"""What JSON takes in memory once it is read, estimated from its bytes: three of them can become seventy."""

from __future__ import annotations

from typing import Final

ASCII_WEIGHT: Final = 3
_WIDE: Final = 18
"""What a byte of text takes until it is stored; and in a text with one character beyond ASCII, in which each takes four
bytes.
"""
_BRACKET: Final = 200
_COMMA: Final = 32
"""Bytes that an object or a list takes in Python, and a value in one."""
_USUAL: Final = 2**20
"""Bytes of a body that is never too heavy for a worker."""
MAX_REQUEST_OBJECT_BYTES: Final = 64 * 2**20
"""Bytes of objects that a worker makes of one request. It reads them in the loop that serves everybody: these take a
few tenths of a second.
"""
MOST_OF_REPLY: Final = 512 * 2**20
"""The same of an engine's reply: half a million tokens with their log-probabilities as JSON."""


def values_weight(body: bytes) -> int:
    """Bytes of the objects, lists and values in it, without their text."""
    return _BRACKET * (body.count(b"{") + body.count(b"[")) + _COMMA * body.count(b",")


def parse_weight(body: bytes) -> int:
    """Bytes that parsing and storing it takes."""
    text = _WIDE if b"\\u" in body or not body.isascii() else ASCII_WEIGHT
    return text * len(body) + values_weight(body)


def too_heavy(body: bytes, most: int = MAX_REQUEST_OBJECT_BYTES) -> bool:
    """Whether a data-plane worker must not read it. Its text counts nothing: that is as long as the body."""
    return len(body) > _USUAL and values_weight(body) > most
