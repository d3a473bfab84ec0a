"""A conversation is stored once: a call keeps what it shares with an earlier call of its episode by reference.

A call's *sequence* is its prompt followed by its first reply: that is what the next call of a conversation begins with. A later call stores its
parent's id, how many messages and tokens of the parent's sequence it begins with, and what comes after. Messages and tokens are cut
independently, so an edited, truncated or re-ordered history costs what differs and is never wrong.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from slipstream_proxy.store.codec import Ids

NO_IDS: Ids = np.empty(0, np.int32)

LAST = 8
"""How many calls of an episode may be a parent. One that extends an older call is stored whole."""
MEMORY = 64 * 2**20
"""Bytes of sequences that are remembered."""


def digest(text: str) -> bytes:
    """16 bytes that stand for a message's exact text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@dataclass(slots=True)
class Known:
    """A stored call as a possible parent."""

    id: str
    digests: list[bytes]
    """Of the sequence's messages."""
    ids: Ids
    """The sequence's tokens."""
    tools: str

    @property
    def size(self) -> int:
        return 64 * len(self.digests) + self.ids.nbytes + len(self.tools) + 256


@dataclass(slots=True)
class Cut:
    """What is stored of a call's prompt. ``tools`` None: the parent's."""

    base: str | None
    keep_messages: int
    keep_tokens: int
    messages: list[str]
    ids: Ids
    tools: str | None


@dataclass(slots=True)
class Whole:
    """A call's prompt and sequence, put together again."""

    messages: list[Any]
    ids: Ids
    tools: list[Any]
    sequence: list[Any] = field(default_factory=list)
    sequence_ids: Ids = field(default_factory=lambda: NO_IDS)


def common(a: Sequence[bytes], b: Sequence[bytes]) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    for i in range(n):
        if a[i] != b[i]:
            return i
    return n


def common_ids(a: Ids, b: Ids) -> int:
    """Length of the longest common prefix of two token sequences."""
    n = min(a.size, b.size)
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if different.size else n


def cut(texts: list[str], digests: list[bytes], ids: Ids, tools: str, known: Sequence[Known]) -> Cut:
    """Choose the parent that shares the longest beginning (messages first, then tokens; the later of equals) and cut it off."""
    best: Known | None = None
    kept = (0, 0)
    for candidate in reversed(known):
        messages = common(digests, candidate.digests)
        if best is not None and messages < kept[0]:
            continue
        shares = (messages, common_ids(ids, candidate.ids))
        if shares > kept:
            best, kept = candidate, shares
    if best is None:
        return Cut(None, 0, 0, texts, ids, tools)
    return Cut(best.id, kept[0], kept[1], texts[kept[0] :], ids[kept[1] :], None if tools == best.tools else tools)


def join(
    base: Whole | None, keep_messages: int, keep_tokens: int, messages: list[Any], ids: Ids, tools: list[Any] | None
) -> Whole:
    """The inverse of ``cut``, on values. A parent that is gone leaves only what the call itself stored."""
    if base is None:
        return Whole(messages, ids, tools or [])
    return Whole(
        base.sequence[:keep_messages] + messages,
        np.concatenate((base.sequence_ids[:keep_tokens], ids)) if keep_tokens else ids,
        base.tools if tools is None else tools,
    )


class KnownCalls:
    """Recent calls of recent episodes, the least recently used forgotten first."""

    def __init__(self, memory: int = MEMORY) -> None:
        self._memory = memory
        self._size = 0
        self._known: OrderedDict[tuple[str, str], list[Known]] = OrderedDict()

    def get(self, day: str, eid: str) -> list[Known] | None:
        """None: not remembered, the store may have some."""
        found = self._known.get((day, eid))
        if found is not None:
            self._known.move_to_end((day, eid))
        return found

    def put(self, day: str, eid: str, known: list[Known]) -> None:
        self.forget(day, eid)
        self._known[day, eid] = known[-LAST:]
        self._size += sum(k.size for k in known[-LAST:])
        while self._size > self._memory and len(self._known) > 1:
            _, old = self._known.popitem(last=False)
            self._size -= sum(k.size for k in old)

    def add(self, day: str, eid: str, call: Known) -> None:
        known = self._known.setdefault((day, eid), [])
        known.append(call)
        self._size += call.size
        if len(known) > LAST:
            self._size -= known.pop(0).size
        while self._size > self._memory and len(self._known) > 1:
            _, old = self._known.popitem(last=False)
            self._size -= sum(k.size for k in old)

    def forget(self, day: str, eid: str) -> None:
        for k in self._known.pop((day, eid), ()):
            self._size -= k.size

    def clear(self) -> None:
        self._known.clear()
        self._size = 0
