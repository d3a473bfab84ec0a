"""That the compiler really has nothing left to do in the first step is for a GPU (``make test-gpu``); here: what is computed, and what stays."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tiny import adapter_state, make_config, make_trainer

from slipstream_trainer.layout import forest_width
from slipstream_trainer.warmup import compute, row, warm_up, widths


@given(st.integers(64, 40_000))
def test_every_length_that_a_step_may_have_is_there(budget: int) -> None:
    found = widths(budget)
    assert found == sorted(set(found))
    assert {forest_width(n, budget) for n in {1, budget // 3, budget // 2, budget - 1, budget} if n} <= set(found)
    assert len(found) <= 8


def test_a_made_up_row_has_its_length() -> None:
    for n in (1, 5, 32, 33, 1024):
        made = row(n, 64)
        assert len(made.prompt_P) + len(made.completion_C) - 1 == n
        assert len(made.prompt_P) >= 1


def test_lengths_are_computed_once_and_nothing_is_changed(tiny, tmp_path, monkeypatch) -> None:
    trainer = make_trainer(make_config(tiny, tmp_path, token_budget=3000))
    trainer.compiled = trainer.forests = True
    computed = []
    forward = trainer.forward

    def noted(micro, work):
        computed.append((micro.computed, torch.is_grad_enabled()))
        return forward(micro, work)

    monkeypatch.setattr(trainer, "forward", noted)
    before, expected = adapter_state(trainer.model), torch.get_rng_state()
    took = warm_up(trainer)
    assert list(took) == widths(3000)
    assert {g for _, g in computed} == {True, False}
    assert all(torch.equal(w, before[n]) for n, w in adapter_state(trainer.model).items())
    assert torch.equal(torch.get_rng_state(), expected)
    assert not trainer.optimizer.state
    assert all(p.grad is None for p in trainer.trained)


def test_it_ends_when_it_takes_too_long_and_is_left_out_without_a_compiler(tiny, tmp_path) -> None:
    trainer = make_trainer(make_config(tiny, tmp_path))
    assert warm_up(trainer) == {}
    trainer.compiled = trainer.forests = True
    assert warm_up(trainer, patience=-1.0) == {}
    compute(trainer, 7)


def test_a_row_that_cannot_be_computed_costs_nothing(tiny, tmp_path, monkeypatch) -> None:
    trainer = make_trainer(make_config(tiny, tmp_path, token_budget=3000))
    trainer.compiled = trainer.forests = True
    forward = trainer.forward

    def small(micro, work):
        if micro.computed > 1024:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(micro, work)

    monkeypatch.setattr(trainer, "forward", small)
    assert list(warm_up(trainer)) == [1024]
    assert all(p.grad is None for p in trainer.trained)
