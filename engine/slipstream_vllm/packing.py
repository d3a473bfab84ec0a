"""The packed form of what a call sampled, and where it stands in a reply.

A reply or a streamed chunk of a captured call ends with one more member::

    "slipstream":{"v":1,"p":[[0,"<ids>"]],"c":[[0,"<ids>","<log-probabilities>"],…],"e":1}

- ``p``: (prompt's index, prompt token ids). In a stream it comes once, with the first chunk. For a caller that names
  the prompts that it knows, it is (index, the ids that it does not know, how many it knows, a number n of ids, the
  digest of the prompt's first n ids): what it names at the conversation's next call (``prompt_entry``).
- ``c``: (choice's index, sampled token ids, their log-probabilities), in the order in which they were sampled.
- ``e``: only if vLLM gave fewer log-probabilities than ids; the call cannot be trained on then.

Ids are little-endian int32 and log-probabilities little-endian float32, both as base64.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from array import array
from collections.abc import Iterable, Sequence

PACKED_FIELD = "slipstream"
PACKING_VERSION = 1
MISSING_LOGPROB = -9999.0
"""vLLM's own floor of a log-probability in JSON, which says that it is missing."""

Choice = tuple[int, Sequence[int], Sequence[float]]
Packed = dict[str, object]
Known = tuple[int, str]
"""How many ids of an earlier prompt the caller knows, and their digest."""

UNCOVERED_TAIL_IDS = 16
"""Ids at a prompt's end that no digest covers: a template may end a prompt otherwise than it goes on there."""
MIN_DIGEST_IDS = 48
"""Ids. A digest of fewer would cost as much as it saves."""
_UNIT = 3
"""Ids whose base64 is whole (12 bytes, 16 characters): a text that is cut there can be put together again."""


def encode_ids(ids: Iterable[int]) -> str:
    return _encode(_bytes(array("i", ids)))


def encode_logprobs(logprobs: Iterable[float]) -> str:
    return _encode(_bytes(array("f", [max(x, MISSING_LOGPROB) for x in logprobs])))


def _bytes(values: array[int] | array[float]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _encode(data: bytes | memoryview) -> str:
    return base64.b64encode(data).decode("ascii")


def prompt_entry(index: int, ids: Sequence[int], known: Iterable[Known]) -> list[object]:
    """A prompt for a caller that knows ``known``: without the longest of these that it begins with.

    The digest is the first half of a SHA-256 over the ids as they are sent, so that equal digests mean equal ids. A
    short prompt stands there as for any other caller.
    """
    if len(ids) < MIN_DIGEST_IDS + UNCOVERED_TAIL_IDS:
        return [index, encode_ids(ids)]
    data = _bytes(array("i", ids))
    new = (len(ids) - UNCOVERED_TAIL_IDS) // _UNIT * _UNIT
    asked = {(n, digest) for n, digest in known if 0 < n <= len(ids) and n % _UNIT == 0}
    digests = _digests(data, {new, *(n for n, _ in asked)})
    shared = max((n for n, digest in asked if digests[n] == digest), default=0)
    new = max(new, shared)
    return [index, _encode(memoryview(data)[4 * shared :]), shared, new, digests[new]]


def _digests(data: bytes, counts: Iterable[int]) -> dict[int, str]:
    """The digest of the first n ids, for each n, in one pass."""
    view, so_far, at, found = memoryview(data), hashlib.sha256(), 0, {}
    for n in sorted(counts):
        so_far.update(view[4 * at : 4 * n])
        at, found[n] = n, so_far.copy().hexdigest()[:32]
    return found


def pack(
    prompts: Iterable[tuple[int, Sequence[int]]], choices: Iterable[Choice], known: Iterable[Known] | None = None
) -> Packed:
    """The member's value. Of more log-probabilities than ids the last ones count: vLLM's merged outputs may repeat
    earlier ones. ``known``: what the caller knows of the first prompt; None: it did not say.
    """
    made, short = [], False
    for index, ids, logprobs in choices:
        short = short or len(logprobs) < len(ids)
        made.append([index, encode_ids(ids), encode_logprobs(logprobs[max(0, len(logprobs) - len(ids)) :])])
    packed: Packed = {"v": PACKING_VERSION}
    if found := [_entry(index, ids, known) for index, ids in prompts]:
        packed["p"] = found
    if made:
        packed["c"] = made
    if short:
        packed["e"] = 1
    return packed


def _entry(index: int, ids: Sequence[int], known: Iterable[Known] | None) -> list[object]:
    return [index, encode_ids(ids)] if known is None or index else prompt_entry(index, ids, known)
