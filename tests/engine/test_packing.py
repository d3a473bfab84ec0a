from __future__ import annotations

import base64
import hashlib
import json
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.packed_engine import entry_of

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
    expected = [max(x, packing.MISSING_LOGPROB) for x in logprobs]
    assert list(struct.unpack(f"<{len(logprobs)}f", data)) == expected


def test_a_missing_logprob_has_vllms_own_floor() -> None:
    assert struct.unpack("<f", base64.b64decode(packing.encode_logprobs([-math.inf]))) == (-9999.0,)


def test_fewer_logprobs_than_ids_are_marked() -> None:
    assert packing.pack([], [(3, [1, 2], [-0.5])])["e"] == 1


def test_of_more_logprobs_than_ids_the_last_count() -> None:
    assert packing.pack([], [(0, [7], [-3.0, -2.0, -1.0])]) == packing.pack([], [(0, [7], [-1.0])])


def test_what_is_empty_is_left_out() -> None:
    assert packing.pack([], []) == {"v": packing.PACKING_VERSION}
    assert set(packing.pack([(0, [1])], [])) == {"v", "p"}


def digest_of(ids: list[int]) -> str:
    return hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()[:32]


LONG = st.lists(st.integers(0, 9), min_size=64, max_size=300)


@given(LONG, st.lists(st.integers(0, 110), max_size=4), st.booleans())
def test_what_the_caller_knows_is_left_out_and_nothing_else(ids: list[int], thirds: list[int], lie: bool) -> None:
    known = [(3 * n, digest_of(ids[: 3 * n])) for n in thirds]
    if lie:
        known.append((len(ids) // 3 * 3, "0" * 32))
    index, rest, shared, count, digest = entry_of(ids, known)
    assert index == 0
    assert shared == max((n for n, _ in known[: len(thirds)] if n <= len(ids)), default=0)
    whole = packing.encode_ids(ids)
    assert whole[: shared // 3 * 16] + rest == whole
    assert count % 3 == 0 and shared <= count <= len(ids) and count > len(ids) - packing.UNCOVERED_TAIL_IDS - 3
    assert digest == digest_of(ids[:count])


def test_ids_that_differ_anywhere_are_not_left_out() -> None:
    ids = list(range(300))
    _, _, _, count, digest = entry_of(ids)
    for at in (0, 100, count - 1):
        other = [*ids[:at], 7777, *ids[at + 1 :]]
        assert entry_of(other, [(count, digest)])[1:3] == [packing.encode_ids(other), 0]


@pytest.mark.parametrize("known", [(-3, "x"), (0, "x"), (4, "x"), (3000, "x"), (2**63, "x")])
def test_numbers_that_make_no_sense_are_passed_over(known: packing.Known) -> None:
    assert entry_of(list(range(100)), [known])[2] == 0


def test_a_short_prompt_stands_as_for_any_caller() -> None:
    assert entry_of([1, 2, 3]) == [0, packing.encode_ids([1, 2, 3])]


def test_of_several_prompts_only_the_first_has_what_is_known() -> None:
    ids = list(range(100))
    first, second = json.loads(json.dumps(packing.pack([(0, ids), (1, ids)], [], [])["p"]))
    assert len(first) == 5 and second == [1, packing.encode_ids(ids)]
    assert packing.pack([(0, ids)], [])["p"] == [[0, packing.encode_ids(ids)]]
