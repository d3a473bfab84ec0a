"""That the compiler really has nothing left to do afterwards is for a GPU; here: what is computed, and what stays."""

from __future__ import annotations

import io
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tiny import adapter_state, make_config, make_trainer

from slipstream_trainer.batch.layout import forest_width
from slipstream_trainer.model.compute import LayerCompiler
from slipstream_trainer.model.memory import decoder_layers
from slipstream_trainer.run import warmup
from slipstream_trainer.run.warmup import compute, warm_up, widths
from slipstream_trainer.step.selfcheck import filler


@pytest.fixture
def trainer(tiny, tmp_path, monkeypatch):
    """As a GPU has it for a class that takes one attention alone; the layers stay as they are."""
    monkeypatch.setattr("slipstream_trainer.model.compute.compile_layers", lambda _: None)
    trainer = make_trainer(make_config(tiny, tmp_path, token_budget=3000))
    made = trainer.learner
    made.compiler = LayerCompiler(made.base, decoder_layers(made.base), made.config, tmp_path, beside=True)
    made.compiler.late = False
    made.forests = True
    return trainer


@pytest.fixture
def learner(trainer):
    return trainer.learner


@given(st.integers(64, 40_000))
def test_every_length_that_a_step_may_have_is_there(budget: int) -> None:
    found = widths(budget)
    assert found == sorted(set(found))
    assert {forest_width(n, budget) for n in {1, budget // 3, budget // 2, budget - 1, budget} if n} <= set(found)
    assert len(found) <= 11


def test_a_made_up_row_has_its_length() -> None:
    for n in (1, 5, 32, 33, 1024):
        made = filler(n, 64)
        assert len(made.prompt_P) + len(made.completion_C) - 1 == n
        assert len(made.prompt_P) >= 1


def test_a_batch_has_the_shorter_length_that_is_compiled(learner) -> None:
    learner.compiler.ready = {2048, 2176}
    assert [learner.plan([filler(n, learner.vocab)]).micro[0].computed for n in (2040, 2049, 2177)] == [
        2048,
        2176,
        3072,
    ]


def test_lengths_are_computed_once_and_nothing_is_changed(trainer, learner, monkeypatch) -> None:
    computed = []
    logprobs = learner.logprobs

    def noted(micro, work):
        computed.append((micro.computed, torch.is_grad_enabled()))
        return logprobs(micro, work)

    monkeypatch.setattr(learner, "logprobs", noted)
    before, expected = adapter_state(learner.model), torch.get_rng_state()
    took = warm_up(trainer)
    assert list(took) == widths(3000)
    assert {g for _, g in computed} == {True, False}
    assert all(torch.equal(w, before[n]) for n, w in adapter_state(learner.model).items())
    assert torch.equal(torch.get_rng_state(), expected)
    assert not learner.optimizer.state
    assert all(p.grad is None for p in learner.trained)


def test_nothing_is_computed_ahead_where_lengths_are_compiled_late_or_not_at_all(trainer, learner) -> None:
    learner.compiler.late = True
    assert warm_up(trainer) == {}
    learner.compiler = None
    assert warm_up(trainer) == {}
    compute(learner, filler(7, learner.vocab))


def test_a_gpus_kernels_are_used_once_and_nothing_is_changed(trainer, learner, monkeypatch) -> None:
    scored = []
    logprobs = learner.logprobs

    def noted(micro, work):
        found = logprobs(micro, work)
        scored.append(len(found[0]))
        return found

    monkeypatch.setattr(learner, "logprobs", noted)
    monkeypatch.setattr(warmup, "DIRECT_LIMIT", 1000 * learner.vocab)
    before = adapter_state(learner.model)
    warmup._use_once(trainer)
    assert sum(scored) // 2 > 1000, "as many as take the kernel for many"
    assert all(torch.equal(w, before[n]) for n, w in adapter_state(learner.model).items())
    assert not learner.optimizer.state and all(p.grad is None for p in learner.trained)

    def full(micro, work):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(learner, "logprobs", full)
    warmup._use_once(trainer)
    assert all(p.grad is None for p in learner.trained)


def test_a_row_that_cannot_be_computed_costs_nothing(trainer, learner, monkeypatch) -> None:
    logprobs = learner.logprobs

    def small(micro, work):
        if micro.computed > 1024:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return logprobs(micro, work)

    monkeypatch.setattr(learner, "logprobs", small)
    assert list(warm_up(trainer)) == [1024]
    assert all(p.grad is None for p in learner.trained)


def test_the_process_beside_needs_one_layer_and_its_order(tiny, tmp_path, monkeypatch) -> None:
    config = make_config(tiny, tmp_path)
    made = []
    one_layer = warmup.one_layer

    def noted(*what):
        made.append(one_layer(*what))
        return made[0]

    monkeypatch.setattr(warmup, "one_layer", noted)
    monkeypatch.setattr("os.nice", lambda _: None)
    order = {"config": config.model_dump(mode="json"), "width": 300}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(order)))
    warmup.main()
    (trainer,) = made
    learner = warmup.here_of(trainer)
    assert len(decoder_layers(learner.base)) == 1
    assert {n.split(".layers.")[1][0] for n, _ in learner.model.named_parameters() if ".layers." in n} == {"0"}
    assert learner.config.trainer.model_dump() == config.trainer.model_dump() | {"mode": "tree", "checkpointing": "off"}
