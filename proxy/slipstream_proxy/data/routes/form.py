"""The model's name in a form (``multipart/form-data``: audio and images), which is where such requests have it."""

from __future__ import annotations

import re

_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_MODEL = re.compile(
    rb'(?:^|\r\n)content-disposition:[ \t]*form-data;[ \t]*name="?model"?[ \t]*(?=\r\n|$)', re.IGNORECASE
)


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
