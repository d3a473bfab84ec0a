from __future__ import annotations

import torch
from tests.support.tiny import apart, conversation, gradients, make_config, make_trainer

from slipstream_trainer.algorithm.advantage import assign
from slipstream_trainer.batch.layout import make_plan
from slipstream_trainer.model.memory import activation_bytes, largest, layers_to_checkpoint


def test_the_largest_size_counts_where_each_kind_of_layer_has_its_own() -> None:
    """Gemma 4: transformers refuses to give one head size for all layers."""
    from transformers import AutoConfig, Qwen3Config

    kinds = ["sliding_attention", "full_attention"]
    mixed = AutoConfig.for_model("gemma4_text", num_hidden_layers=2, layer_types=kinds, head_dim=32, global_head_dim=64)
    assert largest(mixed, "head_dim") == 64
    assert largest(Qwen3Config(head_dim=24), "head_dim") == 24
    assert largest(Qwen3Config(), "no_such_size") is None


def test_checkpointing_as_asked_and_off_on_a_cpu(tiny, tmp_path) -> None:
    plan = make_plan(conversation(0))
    for asked, on in (("auto", 0), ("on", 2), ("off", 0)):
        trainer = make_trainer(make_config(tiny, tmp_path, checkpointing=asked))
        assert trainer.learner.checkpointing.choose(plan) == on
        assert [m.gradient_checkpointing for m in trainer.learner.checkpointing.layers] == [bool(on)] * 2


def test_gradients_are_the_same_whatever_is_recomputed(tiny, tmp_path) -> None:
    trainer, samples, found = make_trainer(make_config(tiny, tmp_path)), conversation(0), []
    assign(samples, "std")
    plan = make_plan(samples)
    for wanted in (0, 1, 2):
        trainer.learner.checkpointing._set(wanted)
        trainer.backward(trainer.start(plan))
        found.append(gradients(trainer))
    assert apart(found[0], found[1]) < 1e-5
    assert apart(found[0], found[2]) < 1e-5


def test_as_few_layers_as_fit() -> None:
    assert layers_to_checkpoint(28, 100, 5, 2800) == 0
    assert layers_to_checkpoint(28, 100, 5, 2799) == 2  # 26 whole, two entries, one whole again
    assert layers_to_checkpoint(28, 100, 5, 10) == 28
    sizes = [layers_to_checkpoint(28, 100, 5, room) for room in range(0, 3000, 100)]
    assert sizes == sorted(sizes, reverse=True)


def test_the_estimate_grows_with_the_tokens() -> None:
    from transformers import Qwen3Config

    c = Qwen3Config()
    assert activation_bytes(c, 2000, 2) == 2 * activation_bytes(c, 1000, 2) > 0


def test_a_batch_that_runs_out_of_memory_is_computed_again(tiny, tmp_path, monkeypatch) -> None:
    trainer, samples = make_trainer(make_config(tiny, tmp_path)), conversation(0)
    assign(samples, "std")
    plan = make_plan(samples)
    trainer.backward(trainer.start(plan))
    expected, forward, calls = gradients(trainer), trainer.taught, []

    def short(*args):
        calls.append(1)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("no memory")
        return forward(*args)

    again = trainer.start(plan)
    monkeypatch.setattr(trainer, "taught", short)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    trainer.backward(again)
    assert trainer.learner.checkpointing.now == 2
    assert apart(gradients(trainer), expected) < 1e-5
