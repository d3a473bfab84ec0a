"""A batch's prompts come back whole, and a conversation of many calls is held once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.shared.tables import PackedPrompts, prompts_of, whole_prompts

IDS = st.lists(st.integers(0, 5), max_size=5)


@st.composite
def packed(draw):
    """Rows that begin with earlier ones, and their whole prompts."""
    prompts, completions, before, keeps, whole = [], [], [], [], []
    for row in range(draw(st.integers(1, 8))):
        base = draw(st.none() | st.integers(0, row - 1)) if row else None
        sequence = whole[base] + completions[base] if base is not None else []
        keep = draw(st.sampled_from([len(sequence), draw(st.integers(0, len(sequence)))]))
        prompts.append(draw(IDS))
        completions.append(draw(IDS))
        before.append(base)
        keeps.append(keep)
        whole.append(sequence[:keep] + prompts[-1])
    return prompts, completions, before, keeps, whole


def array(ids):
    return np.array(ids, np.int32)


@settings(max_examples=300, deadline=None)
@given(packed())
def test_every_prompt_comes_back(rows):
    prompts, completions, before, keeps, whole = rows
    made = PackedPrompts([array(p) for p in prompts], [array(c) for c in completions], before, keeps).whole()
    assert [m.tolist() for m in made] == whole
    lists = pa.list_(pa.int32())
    table = pa.table(
        {
            "prompt_ids": pa.array(prompts, lists),
            "completion_ids": pa.array(completions, lists),
            "prefix_row": pa.array(before, pa.int32()),
            "prefix_tokens": pa.array(keeps, pa.int32()),
        }
    )
    assert [m.tolist() for m in prompts_of(table)] == whole
    again = whole_prompts(table)
    assert again.column("prompt_ids").to_pylist() == whole
    assert again.schema == table.schema
    assert whole_prompts(again) is again


def test_a_conversation_is_held_once():
    calls = 1_000
    said = [array(range(20)) for _ in range(calls)]
    before = [None, *range(calls - 1)]
    made = PackedPrompts(said, said, before, [40 * n for n in range(calls)]).whole()
    assert len(made[-1]) == 40 * calls - 20
    assert all(np.shares_memory(made[0], one) for one in made)


def test_a_table_without_the_columns_is_whole():
    table = pa.table({"prompt_ids": pa.array([[1, 2], None], pa.list_(pa.int32()))})
    assert [p.tolist() for p in prompts_of(table)] == [[1, 2], []]
    assert whole_prompts(table) is table


@pytest.mark.parametrize("before", [1, 7, -1])
def test_a_row_begins_with_one_that_stands_before_it(before):
    with pytest.raises(ValueError, match=f"row 1 begins with row {before}"):
        PackedPrompts([array([1])] * 2, [array([1])] * 2, [None, before], [0, 1])
