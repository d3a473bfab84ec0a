"""What the small worlds share."""

from __future__ import annotations

import itertools

import pytest
from common.worlds import SPLITS, first_seed, function_tool


@pytest.mark.parametrize("items", [100_000, 1_000_000])
def test_no_two_runs_or_splits_have_an_item_in_common(items: int) -> None:
    runs = sorted({first_seed(split, seed, items) for split in SPLITS for seed in (0, 1, 2, 999)})
    assert len(runs) == 12
    assert all(after - before >= items for before, after in itertools.pairwise(runs))


def test_a_run_beyond_the_last_one_is_the_first_again() -> None:
    assert first_seed("eval", 10_000) == first_seed("eval", 0)


def test_a_tool_has_one_argument_and_needs_it() -> None:
    parameters = function_tool("read", "id", "integer", "Read it.")["function"]["parameters"]
    assert parameters == {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
