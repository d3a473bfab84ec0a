"""Token counts of a recorded reply, whole or a stream's events, without parsing it."""

from __future__ import annotations

import re

from slipstream_proxy.json_types import Json, JsonObject

MAX_CALL_TOKENS = 2**31 - 1
"""Tokens that a call can have: what says more is no count, and a column of the store does not hold it."""
_COUNT = rb'_tokens":\s*(\d{1,10})(?![\d.eE])'
_SAID = (re.compile(rb'"(?:prompt|input)' + _COUNT), re.compile(rb'"(?:completion|output)' + _COUNT))
_IDS = (re.compile(rb'"prompt_token_ids":\s*\[([\d,\s]+)\]'), re.compile(rb'"token_ids":\s*\[([\d,\s]+)\]'))


def usage_of(reply: bytes) -> tuple[int | None, int | None]:
    """Tokens (in, out): the engine's own count, the last where a stream says it again, else token ids counted; None:
    the reply has neither.

    What is no count of tokens (negative, too large, a text) is passed over. A text that quotes such a field has its
    quotation marks escaped, and does not match.
    """
    found: list[int | None] = []
    for said, ids in zip(_SAID, _IDS, strict=True):
        if counts := [n for n in map(int, said.findall(reply)) if n <= MAX_CALL_TOKENS]:
            found.append(counts[-1])
        elif pieces := ids.findall(reply):
            found.append(sum(p.count(b",") + 1 for p in pieces))
        else:
            found.append(None)
    return found[0], found[1]


def count_of(usage: Json, name: str) -> int:
    """A count of a server's ``usage``, which may be of any shape; 0: it has none."""
    value = usage.get(name) if isinstance(usage, dict) else None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_CALL_TOKENS:
        return value
    return 0


def usage_in(read: JsonObject, before: JsonObject) -> JsonObject:
    """The ``usage`` of a reply or event; ``before``: where it has none."""
    found = read.get("usage")
    return found if isinstance(found, dict) and found else before
