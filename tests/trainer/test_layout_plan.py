from __future__ import annotations

import numpy as np
import pytest
from tests.support.tiny import conversation, sample

from slipstream_trainer.batch.layout import make_plan, refuse_long, score


@pytest.mark.parametrize("forest", [False, True])
@pytest.mark.parametrize("layout", ["per_call", "merged", "tree", "auto"])
@pytest.mark.parametrize("micro", [40, 200, 10_000])
def test_every_trained_token_is_computed_once_behind_its_own_past(layout, micro: int, forest: bool) -> None:
    samples = conversation(2, groups=3, episodes=4)
    samples[5].trainable = False
    plan = make_plan(samples, layout=layout, micro=micro, forest=forest)
    seen = np.concatenate([m.slots.token_S for m in plan.micro])
    assert sorted(seen.tolist()) == list(range(plan.scored.tokens))
    _, starts = score(samples)
    for m in plan.micro:
        rows, n = m.ids_RN.shape
        assert m.computed == rows * n
        flat = m.ids_RN.reshape(-1)
        for source, target, token in zip(m.slots.source_S, m.slots.target_S, m.slots.token_S, strict=True):
            s = samples[int(plan.scored.sample_T[token])]
            at = int(token) - starts[int(plan.scored.sample_T[token])]
            past = [*s.prompt_P.tolist(), *s.completion_C.tolist()][: len(s.prompt_P) + at]
            row, column = divmod(int(source), n)
            if m.ends_RN is None:
                visible = m.ids_RN[row, : column + 1]
            else:
                visible = m.ids_RN[row, : column + 1][column < m.ends_RN[row, : column + 1]]
            assert visible.tolist() == past
            assert flat[source] == past[-1]
            assert target == s.completion_C[at]


def test_trees_compute_less_than_merged_rows_and_those_less_than_calls() -> None:
    plan = make_plan(conversation(2, groups=3, episodes=4, turns=4), layout="tree")
    assert plan.tokens == plan.tokens_tree < plan.tokens_merged < plan.tokens_per_call
    assert 0 <= plan.padding < 1
    assert make_plan(conversation(2), layout="merged").tokens == make_plan(conversation(2)).tokens_merged


def test_micro_batches_keep_within_the_budget() -> None:
    plan = make_plan(conversation(3, groups=4, episodes=6), layout="auto", budget=100, micro=100)
    assert len(plan.micro) > 1
    assert all(m.computed <= 100 for m in plan.micro)


def test_positions_restart_in_a_forest() -> None:
    plan = make_plan(conversation(3, groups=4, episodes=6), layout="merged", micro=1024, forest=True)
    for m in plan.micro:
        assert m.ids_RN.shape == (1, 1024)
        assert m.positions_RN is not None
        begins = np.flatnonzero(m.positions_RN[0] == 0)
        lengths = np.diff([*begins, 1024])
        assert m.tokens == lengths[:-1].sum() or m.tokens == 1024  # the last one is padding


def test_rows_are_multiples() -> None:
    plan = make_plan(conversation(3), layout="auto", multiple=16)
    assert all(m.ids_RN.shape[1] % 16 == 0 for m in plan.micro)


def test_what_is_too_long_is_refused_and_counted() -> None:
    long = [sample("a", np.full(50, 3), [4, 5]), sample("b", [3, 4], [5])]
    assert refuse_long(long, 51) == 0
    assert refuse_long(long, 50) == 1
    plan = make_plan([sample("a", np.full(50, 3), [4, 5]), sample("b", [3, 4], [5])], budget=50)
    assert plan.too_long == 1
    assert plan.scored.tokens == 1


def test_units_are_episodes() -> None:
    scored, _ = score(conversation(1, groups=2, episodes=3))
    assert scored.units == 6
    for unit in range(6):
        columns = scored.column_T[scored.unit_T == unit]
        assert columns.tolist() == list(range(len(columns)))


def test_nothing_to_train_on() -> None:
    plan = make_plan([sample("a", [3], [4], trainable=False)])
    assert (plan.micro, plan.scored.tokens, plan.padding) == ([], 0, 0.0)
