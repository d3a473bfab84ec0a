"""A conversation is stored once: a call keeps what it shares with an earlier call of its episode by reference.

A call's *sequence* is its prompt followed by its first reply: that is what the next call of a conversation begins with.
A later call stores the id of its *base*, how many messages and tokens of the base's sequence it begins with, and what
comes after. Messages and tokens are cut independently, so an edited, truncated or re-ordered history costs what differs
and is never wrong. Which call a call really goes on with is another question (``tree``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream_proxy.store.codec import Ids
from slipstream_proxy.store.fingerprint import SIZE, TokenPrint, common

NO_IDS: Ids = np.empty(0, np.int32)

LAST = 8
"""How many calls of an episode may be a base, beside the one that a call extends."""


@dataclass(slots=True)
class Known:
    """A stored call as a possible base."""

    id: str
    chain: Sequence[bytes]
    """One chained hash for each message."""
    tokens: TokenPrint
    """The fingerprint of its tokens."""
    tools: bytes
    """Digest."""

    @property
    def size(self) -> int:
        return SIZE * (len(self.chain) + len(self.tokens.blocks)) + 512


@dataclass(slots=True)
class Cut:
    """What is stored of a call's prompt. ``tools`` None: the base's."""

    base: str | None
    keep_messages: int
    keep_tokens: int
    messages: list[str]
    ids: Ids
    tools: str | None


@dataclass(slots=True)
class Prompt:
    """A call's prompt, ready to be cut."""

    texts: list[str]
    chain: list[bytes]
    ids: Ids
    blocks: Sequence[bytes]
    tools: str
    tools_digest: bytes


def cut(prompt: Prompt, known: Sequence[Known]) -> Cut:
    """Cut off the longest beginning that a base shares: messages first, then tokens; the later of equal bases."""
    best: Known | None = None
    kept = (0, 0)
    for candidate in reversed(known):
        messages = common(prompt.chain, candidate.chain)
        if best is not None and messages < kept[0]:
            continue
        shares = (messages, candidate.tokens.shared(prompt.ids, prompt.blocks))
        if shares > kept:
            best, kept = candidate, shares
    if best is None:
        return Cut(None, 0, 0, prompt.texts, prompt.ids, prompt.tools)
    tools = None if prompt.tools_digest == best.tools else prompt.tools
    return Cut(best.id, kept[0], kept[1], prompt.texts[kept[0] :], prompt.ids[kept[1] :], tools)
