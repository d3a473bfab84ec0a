"""Values as the database holds them: JSON text, token ids and log-probabilities as bytes."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


def dump(value: object) -> str:
    """JSON text.

    What orjson cannot write (lone surrogates, integers beyond 64 bits) is ASCII-escaped, after a space that marks it.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return " " + json.dumps(value, separators=(",", ":"))


def load(text: str | None, default: Any = None) -> Any:
    """The inverse of ``dump``."""
    if text is None:
        return default
    return json.loads(text) if text.startswith(" ") else orjson.loads(text)


def dump_list(texts: list[str]) -> str:
    """One JSON array of values that are JSON texts already."""
    body = "[" + ",".join(texts) + "]"
    return " " + body if any(t.startswith(" ") for t in texts) else body


def clean(text: str | None) -> str | None:
    """A client's string as databases take it: no NUL, no lone surrogate."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def ids_of(blob: bytes | None) -> Ids:
    """Token ids, from little-endian int32."""
    return np.frombuffer(blob or b"", "<i4")


def floats_of(blob: bytes | None) -> Floats:
    """Log-probabilities, from little-endian float32."""
    return np.frombuffer(blob or b"", "<f4")


def short(values: Floats) -> list[float]:
    """The numbers in as few digits as name them in 32 bits: half as long as JSON as in 64."""
    if not np.isfinite(values).all():
        return [float(v) for v in values]
    found: list[float] = orjson.loads(orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY))
    return found


def cursor_of(started: float, eid: str) -> str:
    """Where a page of episodes ended, as the client hands it back."""
    return base64.urlsafe_b64encode(f"{started!r}|{eid}".encode()).decode().rstrip("=")


def parse_cursor(cursor: str) -> tuple[float, str]:
    """Raises ``ValueError`` for a cursor that is not ours."""
    started, _, eid = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().partition("|")
    return float(started), eid
