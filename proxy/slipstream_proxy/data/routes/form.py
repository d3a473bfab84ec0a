"""The model's name in a form (``multipart/form-data``: audio and images), which is where such requests have it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from slipstream.shared.tenant_names import TENANT_PART

_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_CHARSET = re.compile(r'charset\*?="?([^\s;"]*)', re.IGNORECASE)
_MODEL = re.compile(
    rb'(?:^|\r\n)content-disposition:[ \t]*form-data;[ \t]*name="?model"?[ \t]*(?=\r\n|$)', re.IGNORECASE
)


def names_others(body: bytes, content_type: str, models: Iterable[str]) -> bool:
    """Whether some field may name a tenant's adapter of these models: a server may read another part as the model than
    ``find_model`` does, or in another charset.
    """
    charset = _CHARSET.search(content_type)
    if charset is not None and charset[1].lower() not in ("utf-8", "us-ascii"):
        return True
    return any(re.search(re.escape(name.encode()) + TENANT_PART.encode(), body) is not None for name in models)


def find_model(body: bytes, content_type: str) -> tuple[int, int] | None:
    """Where the value begins and ends; None: there is none."""
    m = _BOUNDARY.search(content_type)
    if m is None:
        return None
    mark = b"--" + (m[1] or m[2]).encode()
    at = body.find(mark)
    while at >= 0:
        start = at + len(mark) + 2
        following = body.find(b"\r\n" + mark, start - 2)
        head = body.find(b"\r\n\r\n", start, following)
        if following < 0 or head < 0:
            return None
        if _MODEL.search(body[start:head]):
            return head + 4, following
        at = following + 2
    return None
