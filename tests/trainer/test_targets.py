from __future__ import annotations

import importlib.util

import pytest
import torch
from tests.support.tiny import make_config

from slipstream.errors import ConfigError
from slipstream_trainer.policy import load_policy
from slipstream_trainer.targets import check_quantize, linear_layers


def test_the_linear_layers_are_known_without_the_weights(tiny, tmp_path) -> None:
    (tmp_path / "config.json").write_text((tiny / "config.json").read_text())
    found = {name.rpartition(".")[2] for name in linear_layers(str(tmp_path))}
    assert found == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.mark.parametrize(
    ("target", "word"), [("q_pro", "did you mean q_proj"), ("input_layernorm", "it has"), ("layers", "it has")]
)
def test_a_target_that_is_no_linear_layer_is_refused_before_the_weights_are_read(tiny, tmp_path, target, word) -> None:
    (tmp_path / "config.json").write_text((tiny / "config.json").read_text())  # and nothing else
    with pytest.raises(ConfigError, match=word):
        load_policy(make_config(tmp_path, tmp_path / "d", lora_targets=["v_proj", target]))


def test_targets_by_their_last_part_or_whole(tiny, tmp_path) -> None:
    model, _ = load_policy(make_config(tiny, tmp_path, lora_targets=["q_proj", "layers.1.mlp.up_proj"]))
    adapted = {
        n.split(".lora_")[0].removeprefix("base_model.model.model.")
        for n, p in model.named_parameters()
        if p.requires_grad
    }
    assert adapted == {"layers.0.self_attn.q_proj", "layers.1.self_attn.q_proj", "layers.1.mlp.up_proj"}


def test_qlora_needs_its_library(tiny, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install bitsandbytes"):
        check_quantize(make_config(tiny, tmp_path, quantize="4bit"))
