"""The packed form of what a call sampled, and where it stands in a reply.

A reply or a streamed chunk of a captured call ends with one more member::

    "slipstream":{"v":1,"p":[[0,"<ids>"]],"c":[[0,"<ids>","<log-probabilities>"],…],"e":1}

- ``p``: (prompt's index, prompt token ids). In a stream it comes once, with the first chunk.
- ``c``: (choice's index, sampled token ids, their log-probabilities), in the order in which they were sampled.
- ``e``: only if vLLM gave fewer log-probabilities than ids; the call cannot be trained on then.

Ids are little-endian int32 and log-probabilities little-endian float32, both as base64.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Iterable, Sequence

FIELD = "slipstream"
VERSION = 1
LOWEST = -9999.0
"""vLLM's own floor of a log-probability in JSON, which says that it is missing."""

Choice = tuple[int, Sequence[int], Sequence[float]]
Packed = dict[str, object]


def encode_ids(ids: Iterable[int]) -> str:
    return _encode(array("i", ids))


def encode_logprobs(logprobs: Iterable[float]) -> str:
    return _encode(array("f", [max(x, LOWEST) for x in logprobs]))


def _encode(values: array[int] | array[float]) -> str:
    if sys.byteorder == "big":
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode("ascii")


def pack(prompts: Iterable[tuple[int, Sequence[int]]], choices: Iterable[Choice]) -> Packed:
    """The member's value. Of more log-probabilities than ids the last ones count: vLLM's merged outputs may repeat
    earlier ones.
    """
    made, short = [], False
    for index, ids, logprobs in choices:
        short = short or len(logprobs) < len(ids)
        made.append([index, encode_ids(ids), encode_logprobs(logprobs[max(0, len(logprobs) - len(ids)) :])])
    packed: Packed = {"v": VERSION}
    if found := [[index, encode_ids(ids)] for index, ids in prompts]:
        packed["p"] = found
    if made:
        packed["c"] = made
    if short:
        packed["e"] = 1
    return packed
