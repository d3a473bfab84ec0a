"""Numbers of JSON as Python reads it that JSON itself does not have."""

from __future__ import annotations

import json
import math
from typing import Any

_DIGITS = bytes(0x30 if 0x30 <= c <= 0x39 else c for c in range(256))
_LONG = b"0" * 19


class Odd(float):
    """NaN or an infinity: orjson writes a float of that value as null, and refuses this."""


def number(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else Odd(value)


def python_loads(text: bytes) -> Any:
    """JSON as Python reads it. Raises ValueError."""
    return json.loads(text, parse_constant=number, parse_float=number)


def has_long_integer(text: bytes) -> bool:
    """Something in this JSON may be an integer beyond 64 bits, of which orjson makes a float."""
    return _LONG in text.translate(_DIGITS)
