from __future__ import annotations

import pytest
import torch
from tests.support.tiny import apart, conversation, gradients, make_config, make_trainer

from slipstream.config import load_config
from slipstream.settings import TrainerConfig
from slipstream_trainer.algorithm.advantage import assign
from slipstream_trainer.algorithm.effects import without_effect
from slipstream_trainer.batch.layout import make_plan


def test_only_what_was_set_is_reported() -> None:
    assert without_effect(TrainerConfig()) == {}
    assert "inner_steps" in without_effect(TrainerConfig(epsilon=0.1))["epsilon"]
    assert set(without_effect(TrainerConfig(epsilon=0.1, epsilon_high=0.3, loss="sapo", inner_steps=2))) == {
        "epsilon",
        "epsilon_high",
    }
    assert set(without_effect(TrainerConfig(epsilon=0.1, epsilon_high=0.3, inner_steps=2))) == {"epsilon"}
    assert without_effect(TrainerConfig(epsilon=0.1, loss="grpo", inner_steps=2)) == {}
    assert set(without_effect(TrainerConfig(algorithm="sft", beta=0.1, lora_rank=8))) == {"beta"}
    assert set(without_effect(TrainerConfig(learning_rate=1e-4, target_kl=0.1))) == {"target_kl"}


def test_what_a_file_or_a_flag_set_counts_as_set() -> None:
    config = load_config(None, env={"SLIPSTREAM_TRAINER__EPSILON": "0.1"}, flags=["trainer.target_kl=0.02"])
    assert set(without_effect(config.trainer)) == {"epsilon"}


def test_a_process_that_gets_all_settings_from_another_reports_the_same() -> None:
    assert without_effect(TrainerConfig.model_validate(TrainerConfig().model_dump())) == {}
    handed_on = TrainerConfig.model_validate(TrainerConfig(epsilon=0.1).model_dump())
    assert set(without_effect(handed_on)) == {"epsilon"}


@pytest.mark.parametrize("loss", ["cispo", "grpo", "dapo"])
def test_what_is_reported_really_changes_nothing(tiny, tmp_path, loss: str) -> None:
    found = []
    for settings in ({}, {"epsilon": 0.01, "epsilon_high": 0.01}):
        config = make_config(tiny, tmp_path, loss=loss, **settings)
        trainer, samples = make_trainer(config), conversation(1)
        torch.manual_seed(0)
        assign(samples, "std")
        trainer.backward(trainer.start(make_plan(samples)))
        found.append(gradients(trainer))
    assert apart(*found) == 0.0
