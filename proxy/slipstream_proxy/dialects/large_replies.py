"""What a whole reply says that the client did not ask for, and how a large one loses it: there, copies count."""

from __future__ import annotations

from io import BytesIO
from typing import Final

from slipstream_proxy.dialects.base import logprobs_end, null_ids, null_logprobs

LARGE: Final = 16 * 2**20
"""Bytes from which on a reply is copied once, and not for each of its changes."""

_LOGPROBS: Final = ((b'"logprobs":{', b',"finish_reason":'), (b'"logprobs": {', b', "finish_reason":'))
_IDS: Final = (b'token_ids":[', b'token_ids": [')


def nulled(reply: bytes, *, ids: bool, logprobs: bool) -> bytes | None:
    """The reply with null for ids and log-probabilities. None: they do not stand where vLLM writes them."""
    if len(reply) > LARGE:
        return _at_once(reply, ids=ids, logprobs=logprobs)
    cut = null_logprobs(reply) if logprobs else reply
    return null_ids(cut) if ids and cut is not None else cut


def _at_once(reply: bytes, *, ids: bool, logprobs: bool) -> bytes | None:
    """The same with one copy in place of five."""
    key, after = _LOGPROBS[0] if reply.find(_LOGPROBS[0][0]) >= 0 else _LOGPROBS[1]
    ids_key = _IDS[0] if reply.find(_IDS[0]) >= 0 else _IDS[1]
    next_logprobs = reply.find(key) if logprobs else -1
    next_ids = reply.find(ids_key) if ids else -1
    if next_logprobs < 0 and next_ids < 0:
        return reply
    whole, view, start = BytesIO(), memoryview(reply), 0
    while next_logprobs >= 0 or next_ids >= 0:
        if next_ids < 0 or 0 <= next_logprobs < next_ids:
            begin = next_logprobs + len(key) - 1
            end = logprobs_end(reply, after, next_logprobs)
            if end < 0:
                return None
        else:
            begin = next_ids + len(ids_key) - 1
            end = reply.find(b"]", begin) + 1
            if not end:
                break
        whole.write(view[start:begin])
        whole.write(b"null")
        start = end
        if 0 <= next_logprobs < start:
            next_logprobs = reply.find(key, start)
        if 0 <= next_ids < start:
            next_ids = reply.find(ids_key, start)
    whole.write(view[start:])
    return whole.getvalue()
