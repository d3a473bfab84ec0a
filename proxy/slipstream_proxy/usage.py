"""Token counts of a recorded reply, whole or a stream's events, without parsing it."""

from __future__ import annotations

import re

_SAID = (re.compile(rb'"(?:prompt|input)_tokens":\s*(\d+)'), re.compile(rb'"(?:completion|output)_tokens":\s*(\d+)'))
_IDS = (re.compile(rb'"prompt_token_ids":\s*\[([\d,\s]+)\]'), re.compile(rb'"token_ids":\s*\[([\d,\s]+)\]'))


def usage_of(reply: bytes) -> tuple[int | None, int | None]:
    """Tokens (in, out): the engine's own count, the last where a stream says it again, else token ids counted; None:
    the reply has neither.

    A text that quotes such a field has its quotation marks escaped, and does not match.
    """
    found: list[int | None] = []
    for said, ids in zip(_SAID, _IDS, strict=True):
        if counts := said.findall(reply):
            found.append(int(counts[-1]))
        elif pieces := ids.findall(reply):
            found.append(sum(p.count(b",") + 1 for p in pieces))
        else:
            found.append(None)
    return found[0], found[1]
