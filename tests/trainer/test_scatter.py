"""A plan's shares: a process gets its own rows, and of the others' what all must agree on."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiny import conversation

from slipstream_trainer.algorithm.advantage import assign
from slipstream_trainer.batch.layout import Layout, Plan, make_plan
from slipstream_trainer.batch.scatter import Share, plan_of, shares
from slipstream_trainer.model.shards import even, looked_at


def planned(seed: int, layout: Layout, micro: int) -> Plan:
    samples = conversation(seed, groups=3, episodes=4)
    samples[-1].filter = (0.1, 5, 0.9)
    assign(samples, "std")
    return make_plan(samples, layout=layout, micro=micro)


def sent(share: Share) -> Share:
    found = pickle.loads(pickle.dumps(share))
    assert isinstance(found, Share)
    return found


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 30),
    layout=st.sampled_from(("per_call", "merged", "tree")),
    micro=st.integers(40, 400),
    processes=st.integers(2, 5),
    sharded=st.booleans(),
)
def test_each_process_has_its_own_rows_and_knows_of_the_others(seed, layout, micro, processes, sharded) -> None:
    whole = planned(seed, layout, micro)
    if sharded:
        even(whole, processes)
    for rank, share in enumerate(shares(whole, processes)):
        plan = plan_of(sent(share))
        for name in ("sample_T", "target_T", "behavior_logprobs_T", "temperature_T", "advantage_T", "unit_T", "column_T", "filter_T3"):  # fmt: skip
            one, other = getattr(plan.scored, name), getattr(whole.scored, name)
            assert one.dtype == other.dtype and np.array_equal(one, other), name
        assert plan.scored.units == whole.scored.units
        assert (plan.tokens, plan.padding, plan.too_long) == (whole.tokens, whole.padding, whole.too_long)
        assert [m.ids_RN.shape for m in plan.micro] == [m.ids_RN.shape for m in whole.micro]
        assert [m.ends_RN is None for m in plan.micro] == [m.ends_RN is None for m in whole.micro]
        assert looked_at(plan.micro, processes, 100) == looked_at(whole.micro, processes, 100)
        for i, (mine, full) in enumerate(zip(plan.micro, whole.micro, strict=True)):
            if i % processes != rank:
                assert not mine.ids_RN.any() and not len(mine.slots.token_S)
                continue
            for name in ("ids_RN", "positions_RN", "ends_RN"):
                one, other = getattr(mine, name), getattr(full, name)
                assert one is other is None or (one.dtype == other.dtype and np.array_equal(one, other)), name
            for name in ("source_S", "target_S", "token_S"):
                assert np.array_equal(getattr(mine.slots, name), getattr(full.slots, name))


@pytest.mark.parametrize("processes", [2, 8])
def test_all_rows_are_sent_once(processes) -> None:
    """So what is sent to all of them does not grow with each process by the batch."""
    samples = conversation(1, groups=16, episodes=8, turns=6)
    assign(samples, "std")
    found = shares(make_plan(samples, layout="per_call", micro=300), processes)
    rows = [sum(m.ids_RN.size for m in s.micro if not hasattr(m, "shape")) for s in found]
    whole = make_plan(samples, layout="per_call", micro=300)
    assert sum(rows) == sum(m.computed for m in whole.micro)
    assert max(rows) < 2 * sum(rows) / processes
    assert max(len(pickle.dumps(s)) for s in found) < len(pickle.dumps(samples)), "less than all samples"
