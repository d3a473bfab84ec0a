"""Hashes say what two sequences share."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slipstream_proxy.store.conversation.fingerprint import (
    BLOCK_TOKENS,
    HASH_BYTES,
    PIECE_CHARS,
    Links,
    TokenPrint,
    chain,
    common,
    digest,
)

IDS = st.lists(st.integers(0, 2), max_size=4 * BLOCK_TOKENS)


def prefix(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


@given(IDS, IDS, st.integers(0, 4 * BLOCK_TOKENS))
def test_shared_tokens_are_known_to_a_block_or_exactly(one, more, at):
    other = one[:at] + more
    a, b = np.asarray(one, np.int32), np.asarray(other, np.int32)
    mine, blocks = TokenPrint.of(a).packed(), TokenPrint.of(b).blocks
    real, found = prefix(one, other), mine.shared(b, blocks)
    assert found <= real
    assert found >= real // BLOCK_TOKENS * BLOCK_TOKENS
    assert mine.begins(b, blocks) == (other[: len(one)] == one)
    assert found == len(one) or other[: len(one)] != one


@given(st.lists(st.sampled_from("abc"), max_size=9), st.lists(st.sampled_from("abc"), max_size=9))
def test_chains_share_what_their_messages_share(one, other):
    a, b = (chain([digest(t) for t in texts]) for texts in (one, other))
    assert common(a, b) == prefix(one, other)
    kept = Links(a)
    assert (list(kept), kept[-1], kept[1:], len(kept)) == (a, a[-1], a[1:], len(a))
    assert common(b, kept) == prefix(one, other)


def test_a_long_text_is_hashed_in_pieces():
    for text in ("x" * (PIECE_CHARS + 1), "\ud800\u00e9" * PIECE_CHARS):
        assert digest(text) == blake2b(text.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest()
