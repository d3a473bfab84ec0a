"""Which content codings a request's body may have."""

from __future__ import annotations

from aiohttp.compression_utils import HAS_BROTLI, HAS_ZSTD

from slipstream_proxy.data.wire.errors import RequestRefused

ACCEPTED_CODINGS = ("gzip", "deflate", *(("br",) if HAS_BROTLI else ()), *(("zstd",) if HAS_ZSTD else ()))


def unread(coding: str) -> RequestRefused | None:
    """The answer to a body of a coding that nothing here reads; None: it is read."""
    named = coding.strip().lower()
    if named in ("", "identity") or named in ACCEPTED_CODINGS:  # the compiler takes no star in a test for membership
        return None
    return refused_coding()


def refused_coding() -> RequestRefused:
    read = " and ".join((", ".join(ACCEPTED_CODINGS[:-1]), ACCEPTED_CODINGS[-1]))
    message = f"this content-encoding is not read here: {read} are, and so is a body without one"
    return RequestRefused(415, message, param="content-encoding")
