"""JSON that a client or an engine wrote: its types, and numbers that Python reads and JSON does not have.

What stands in it is checked where it is used.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

import orjson

Json = Any
"""Any JSON value."""

JsonObject = dict[str, Any]
JsonList = list[Any]
_DIGITS: Final = bytes(0x30 if 0x30 <= c <= 0x39 else c for c in range(256))


class Odd(float):
    """NaN or an infinity: orjson writes a float of that value as null, and refuses this."""


def number(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else Odd(value)


def python_loads(text: bytes) -> Json:
    """JSON as Python reads it. Raises ValueError, also where it is nested too deeply."""
    try:
        return json.loads(text, parse_constant=number, parse_float=number)
    except RecursionError as e:
        raise ValueError("nested too deeply") from e


def has_long_integer(value: Json) -> bool:
    """Whether orjson may have read an integer beyond 64 bits: it makes a float of it, written with an exponent."""
    try:
        text = orjson.dumps(value)
    except TypeError:  # read by ``python_loads``
        return False
    text = text.translate(_DIGITS)
    return text.find(b"0e+00") >= 0 or text.find(b"0e00") >= 0  # older versions write no sign
