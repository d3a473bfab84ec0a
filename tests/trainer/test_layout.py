from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tiny import tokens

from slipstream_trainer.batch.layout import Costs, Row, cut, end_to_end, forest_width, make_plan, side_by_side
from slipstream_trainer.step.selfcheck import filler

SIZES = st.lists(st.integers(1, 100), max_size=40)


def test_forests_have_few_lengths() -> None:
    assert {forest_width(n, 16_384) for n in range(1, 16_385)} == {1024, 2048, 4096, 8192, 12_288, 16_384}
    assert all(forest_width(n, 3000) >= n for n in range(1, 3001))
    assert {forest_width(n, 131_072) for n in range(1, 131_073)} == {
        *(1024, 2048, 4096, 8192, 12_288, 16_384),
        *(20_480, 24_576, 28_672, 32_768, 40_960, 49_152, 57_344, 65_536, 81_920, 98_304, 114_688, 131_072),
    }
    assert [forest_width(n, 16_384, {14_720, 512}) for n in (500, 513, 14_720, 14_721)] == [512, 1024, 14_720, 16_384]


def test_a_long_row_does_not_make_the_others_lanes_longer() -> None:
    lengths = [70_000, 9000, 9001, 5000]
    samples = [filler(n, 64) for n in lengths]
    plan = make_plan(samples, layout="merged", budget=131_072, forest=True)
    assert sorted((m.tokens, m.computed) for m in plan.micro) == [(9000, 12_288), (14_001, 16_384), (70_000, 81_920)]


def test_dear_attention_makes_no_trees() -> None:
    random = np.random.default_rng(0)
    root = tokens(random, 6)
    chains = sorted((np.concatenate([root, tokens(random, 8)]) for _ in range(5)), key=lambda a: a.tobytes())
    assert len(cut(chains, "auto", Costs(1.0, 0.0), 1000)) == 1
    assert len(cut(chains, "auto", Costs(1.0, 10.0), 1000)) == 5
    assert len(cut(chains, "tree", Costs(1.0, 10.0), 1000)) == 1
    assert len(cut(chains, "tree", Costs(), 20)) > 1
    assert len(cut(chains, "merged", Costs(), 1000)) == 5


def test_costs_by_a_models_shape() -> None:
    costs = Costs.of_shape(weights=1000, heads=4, head_size=8, layers=2, dense=True)
    assert (costs.token, costs.pair) == (1000.0, 128.0)
    assert costs.row(10, 55, plain=True) < costs.row(10, 55, plain=False)


@given(SIZES)
def test_every_row_is_in_one_micro_batch_within_the_budget(sizes: list[int]) -> None:
    rows = [Row([i], size) for i, size in enumerate(sizes)]
    for pack in (side_by_side, end_to_end):
        packed = pack(rows, 100)
        assert sorted(r.chains[0] for lanes in packed for lane in lanes for r in lane) == list(range(len(rows)))
        for lanes in packed:
            longest = max(sum(r.size for r in lane) for lane in lanes)
            assert longest * len(lanes) <= 100
