"""Where two calls begin alike (by hashes: no text is needed to know), and what of a call is therefore not stored twice.

A conversation is stored once: a call keeps what it shares with an earlier call of its episode by reference.

A call's *sequence* is its prompt followed by its first reply: that is what the next call of a conversation begins with.
A later call stores the id of its *base*, how many messages and tokens of the base's sequence it begins with, and what
comes after. Messages and tokens are cut independently, so an edited, truncated or re-ordered history costs what differs
and is never wrong. Which call a call really goes on with is another question (``tree``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, overload

import numpy as np

from slipstream_proxy.store.tables.rows import Ids

BLOCK_TOKENS = 64
"""Tokens of one hash. What two calls share is known to a block, or exactly where one begins with all of the other."""
EMPTY_FINGERPRINT = b""
HASH_BYTES = 16
"""Bytes of a hash."""
PIECE_CHARS = 2**18
"""Characters of a long text that are looked at at once."""


def digest(text: str) -> bytes:
    """16 bytes that stand for a message's exact text."""
    if len(text) > PIECE_CHARS:
        return digest_of(pieces_of(text))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest()


def digest_of(pieces: Iterable[str]) -> bytes:
    """The same of a text in pieces, so that it is not in memory twice."""
    found = blake2b(digest_size=HASH_BYTES)
    for piece in pieces:
        found.update(piece.encode("utf-8", "surrogatepass"))
    return found.digest()


def pieces_of(text: str) -> Iterator[str]:
    for at in range(0, len(text), PIECE_CHARS):
        yield text[at : at + PIECE_CHARS]


def _link(before: bytes, part: bytes) -> bytes:
    return blake2b(before + part, digest_size=HASH_BYTES).digest()


def chain(digests: Sequence[bytes], before: Sequence[bytes] = (EMPTY_FINGERPRINT,)) -> list[bytes]:
    """Hash of each beginning, the empty one first."""
    links = list(before)
    for one in digests:
        links.append(_link(links[-1], one))
    return links


def common(a: Sequence[bytes], b: Sequence[bytes]) -> int:
    """How many links two chains share, the empty one apart."""
    low, high = 0, min(len(a), len(b)) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if a[middle] == b[middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Links(Sequence[bytes]):
    """A chain to be kept: 16 bytes a link, the empty one apart."""

    __slots__ = ("_data",)

    def __init__(self, links: Sequence[bytes]) -> None:
        self._data = b"".join(links)

    def __len__(self) -> int:
        return len(self._data) // HASH_BYTES + 1

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        return self._data[HASH_BYTES * (at - 1) : HASH_BYTES * at] if at else EMPTY_FINGERPRINT


class TokenEnd(NamedTuple):
    """All of a token sequence: the last link of its whole blocks, how long it is, and a hash of it."""

    block: bytes
    length: int
    hash: bytes

    @classmethod
    def at(cls, block: bytes, ids: Ids, length: int) -> TokenEnd:
        """Of the first ``length`` of ``ids``, whose whole blocks have the hash ``block``."""
        tail = np.ascontiguousarray(ids[length // BLOCK_TOKENS * BLOCK_TOKENS : length], "<i4").tobytes()
        return cls(block, length, _link(block, tail))

    def begins(self, ids: Ids, blocks: Sequence[bytes]) -> bool:
        """Whether the sequence ``ids`` (with its ``blocks``) begins with all of this one."""
        whole = self.length // BLOCK_TOKENS
        if self.length > len(ids) or whole >= len(blocks) or blocks[whole] != self.block:
            return False
        return self.at(self.block, ids, self.length) == self


@dataclass(slots=True)
class TokenPrint:
    """A token sequence: the chain of its whole blocks, and a hash of all of it."""

    blocks: Sequence[bytes]
    length: int
    end: bytes

    @classmethod
    def of(cls, ids: Ids, begun: Sequence[bytes] = (EMPTY_FINGERPRINT,)) -> TokenPrint:
        """``begun``: the first links of its blocks, where they are known."""
        data = np.ascontiguousarray(ids, "<i4").tobytes()
        whole = len(ids) // BLOCK_TOKENS
        size = 4 * BLOCK_TOKENS
        blocks = chain([data[i * size : (i + 1) * size] for i in range(len(begun) - 1, whole)], begun)
        return cls(blocks, len(ids), _link(blocks[-1], data[whole * size :]))

    def packed(self) -> TokenPrint:
        """The same, to be kept."""
        return TokenPrint(Links(self.blocks), self.length, self.end)

    def whole(self) -> TokenEnd:
        """What says whether another sequence begins with all of this one."""
        return TokenEnd(self.blocks[-1], self.length, self.end)

    def begins(self, ids: Ids, blocks: Sequence[bytes]) -> bool:
        """Whether the sequence ``ids`` (with its ``blocks``) begins with all of this one."""
        return self.whole().begins(ids, blocks)

    def shared(self, ids: Ids, blocks: Sequence[bytes]) -> int:
        """Tokens of this sequence that ``ids`` begins with, as far as it is known."""
        return self.length if self.begins(ids, blocks) else BLOCK_TOKENS * common(self.blocks, blocks)


NO_IDS: Ids = np.empty(0, np.int32)

MAX_BASE_CALLS = 8
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
        return HASH_BYTES * (len(self.chain) + len(self.tokens.blocks)) + 512


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
