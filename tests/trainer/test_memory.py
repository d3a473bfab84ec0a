from __future__ import annotations

from tests.trainer.tiny import conversation, make_config, make_trainer

from slipstream_trainer.memory import activation_bytes, choose_checkpointing
from slipstream_trainer.plan import make_plan


def test_checkpointing_as_asked_and_off_on_a_cpu(tiny, tmp_path) -> None:
    trainer = make_trainer(make_config(tiny, tmp_path))
    plan = make_plan(conversation(0))
    for asked, on in (("auto", False), ("on", True), ("off", False)):
        trainer.config.trainer.checkpointing = asked
        assert choose_checkpointing(trainer, plan) is on
        assert bool(trainer.model.get_base_model().is_gradient_checkpointing) is on


def test_checkpointed_gradients_are_the_same(tiny, tmp_path) -> None:
    from tests.trainer.tiny import apart, gradients

    from slipstream_trainer.advantage import assign

    trainer, samples, found = make_trainer(make_config(tiny, tmp_path)), conversation(0), []
    assign(samples, "std")
    for asked in ("off", "on"):
        trainer.config.trainer.checkpointing = asked
        plan = make_plan(samples)
        choose_checkpointing(trainer, plan)
        trainer.backward(trainer.start(plan))
        found.append(gradients(trainer))
    assert apart(*found) < 1e-5


def test_the_estimate_grows_with_the_tokens(tiny, tmp_path) -> None:
    from transformers import Qwen3Config

    c = Qwen3Config()
    assert activation_bytes(c, 2000, 2) == 2 * activation_bytes(c, 1000, 2) > 0
