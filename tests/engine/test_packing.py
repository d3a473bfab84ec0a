from __future__ import annotations

import base64
import math
import struct

from hypothesis import given
from hypothesis import strategies as st

from slipstream_vllm import packing

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=50)
LOGPROBS = st.floats(max_value=0.0, allow_nan=False, width=32)


@given(IDS)
def test_ids_come_back_exactly(ids: list[int]) -> None:
    data = base64.b64decode(packing.encode_ids(ids))
    assert list(struct.unpack(f"<{len(ids)}i", data)) == ids


@given(st.lists(LOGPROBS, max_size=50))
def test_logprobs_come_back_as_the_float32_that_json_would_have_given(logprobs: list[float]) -> None:
    data = base64.b64decode(packing.encode_logprobs(logprobs))
    expected = [max(x, packing.LOWEST) for x in logprobs]
    assert list(struct.unpack(f"<{len(logprobs)}f", data)) == expected


def test_a_missing_logprob_has_vllms_own_floor() -> None:
    assert struct.unpack("<f", base64.b64decode(packing.encode_logprobs([-math.inf]))) == (-9999.0,)


def test_fewer_logprobs_than_ids_are_marked() -> None:
    assert packing.pack([], [(3, [1, 2], [-0.5])])["e"] == 1


def test_of_more_logprobs_than_ids_the_last_count() -> None:
    assert packing.pack([], [(0, [7], [-3.0, -2.0, -1.0])]) == packing.pack([], [(0, [7], [-1.0])])


def test_what_is_empty_is_left_out() -> None:
    assert packing.pack([], []) == {"v": packing.VERSION}
    assert set(packing.pack([(0, [1])], [])) == {"v", "p"}
