from __future__ import annotations

import importlib.util
import json
import sys
from types import SimpleNamespace

import pytest
import torch
from tests.support.families import make_family
from tests.support.tiny import adapter_state, conversation, make_config, make_trainer
from transformers import AutoConfig

from slipstream.errors import ConfigError, StartError
from slipstream_imitation.distill import _speech
from slipstream_trainer.batch.layout import make_plan
from slipstream_trainer.model import policy
from slipstream_trainer.model.adapter import load_adapter
from slipstream_trainer.model.policy import (
    _load_frugal,
    check_quantize,
    choose_targets,
    load_policy,
    skeleton,
)
from slipstream_trainer.versions.adapter_folder import write_adapter

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP = {"gate_proj", "up_proj", "down_proj"}
LATENT = {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"}


def test_a_dense_model_is_adapted_in_all_linear_layers_and_known_without_its_weights(tiny, tmp_path) -> None:
    (tmp_path / "config.json").write_text((tiny / "config.json").read_text())
    found = choose_targets(skeleton(str(tmp_path)), "all-linear")
    assert set(found.names) == ATTENTION | MLP
    assert "leaves out" not in found.says


@pytest.mark.parametrize(
    ("family", "adapted", "left_out"),
    [
        ("qwen3_moe", ATTENTION, "routed experts"),
        ("mixtral", ATTENTION, "routed experts"),
        ("deepseek_v3", LATENT | MLP, "routed experts"),
        ("glm4_moe", ATTENTION | MLP, "routed experts"),
        ("qwen3_next", ATTENTION | MLP | {"in_proj_qkvz", "in_proj_ba", "out_proj"}, "shared_expert_gate"),
        ("gpt_oss", ATTENTION, "routed experts"),
        ("falcon_h1", ATTENTION | MLP | {"in_proj"}, "out_proj"),
        ("glm4", ATTENTION | {"down_proj"}, "gate_up_proj"),
    ],
)
def test_a_step_of_a_family_writes_an_adapter_that_passes_our_check(tmp_path, family, adapted, left_out) -> None:
    """Attention, MLPs and shared experts are adapted. Routers, routed experts and what vLLM refuses are not."""
    config = make_config(make_family(family, tmp_path / "m"), tmp_path / "d")
    said = choose_targets(skeleton(str(tmp_path / "m")), "all-linear").says
    assert left_out in said.partition("leaves out")[2]
    trainer = make_trainer(config)
    before = adapter_state(trainer.model)
    assert {n.split(".lora_")[0].rpartition(".")[2] for n in before} == adapted
    trainer.backward(trainer.start(make_plan(conversation(), layout="merged")))
    trainer.learner.step(1e-2)
    write_adapter(trainer.learner.adapter, tmp_path / "m@1", 16)
    written = json.loads((tmp_path / "m@1" / "adapter_config.json").read_text())
    assert not written.get("rank_pattern")
    assert not written.get("target_parameters")
    after = adapter_state(trainer.model)
    assert all(not torch.equal(before[n], after[n]) for n in before), "each layer has a gradient"
    again, _ = load_policy(config)
    load_adapter(again, tmp_path / "m@1")
    assert all(torch.equal(w, after[n]) for n, w in adapter_state(again).items())


def test_a_mixture_of_experts_takes_a_list_as_it_is_written(tmp_path) -> None:
    """PEFT would read ``gate_proj`` as a part of the routed experts."""
    folder = make_family("deepseek_v3", tmp_path / "m")
    model, _ = load_policy(make_config(folder, tmp_path / "d", lora_targets=["o_proj", "gate_proj"]))
    adapted = {n.split(".lora_")[0].removeprefix("base_model.model.model.layers.") for n in adapter_state(model)}
    assert adapted == {"0.self_attn.o_proj", "1.self_attn.o_proj", "0.mlp.gate_proj", "1.mlp.shared_experts.gate_proj"}


@pytest.mark.parametrize(("family", "target"), [("falcon_h1", "out_proj"), ("glm4", "gate_up_proj")])
def test_a_layer_that_cannot_be_adapted_is_refused_by_the_settings_name(tmp_path, family, target) -> None:
    with pytest.raises(ConfigError, match=rf"trainer.lora_targets: '{target}'.*o_proj"):
        load_policy(make_config(make_family(family, tmp_path / "m"), tmp_path / "d", lora_targets=["o_proj", target]))


@pytest.mark.parametrize(
    ("target", "word"), [("q_pro", "did you mean q_proj"), ("input_layernorm", "it has"), ("layers", "it has")]
)
def test_a_target_that_is_no_linear_layer_is_refused_before_the_weights_are_read(tiny, tmp_path, target, word) -> None:
    (tmp_path / "config.json").write_text((tiny / "config.json").read_text())  # and nothing else
    with pytest.raises(ConfigError, match=word):
        load_policy(make_config(tmp_path, tmp_path / "d", lora_targets=["v_proj", target]))


def test_a_model_with_its_own_code_is_refused_and_nobody_is_asked_to_run_it(tiny, tmp_path, monkeypatch) -> None:
    def asked(*_: object) -> str:
        raise AssertionError("transformers asks at the terminal whether to run the model's code")

    monkeypatch.setattr("builtins.input", asked)
    described = json.loads((tiny / "config.json").read_text()) | {"model_type": "internlm3"}
    (tmp_path / "config.json").write_text(json.dumps(described | {"auto_map": {"AutoConfig": "configuration.Own"}}))
    for load in (lambda: load_policy(make_config(tmp_path, tmp_path / "d")), lambda: _speech(str(tmp_path))):
        with pytest.raises(StartError, match=r"internlm3.*brings its own code.*not be trained"):
            load()


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


def test_frugal_needs_a_gpu_and_its_library(tiny, tmp_path, monkeypatch) -> None:
    """Where memory is too little, going on without it would be the wrong way."""
    config = make_config(tiny, tmp_path, mode="frugal")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="needs a GPU"):
        load_policy(config)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs Unsloth: pip install 'slipstream\[unsloth\]'.*trainer.python"):
        load_policy(config)


def test_an_unsloth_that_cannot_be_imported_is_no_reason_to_take_more_memory(tiny, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "unsloth", None)
    with pytest.raises(ConfigError, match="Unsloth can't be used"):
        _load_frugal(make_config(tiny, tmp_path, mode="frugal"), str(tiny))
    assert _load_frugal(make_config(tiny, tmp_path), str(tiny)) is None


def test_unsloth_stretches_no_positions(tiny, tmp_path, monkeypatch) -> None:
    asked: dict[str, object] = {}

    class FastLanguageModel:
        @staticmethod
        def from_pretrained(path: str, **given: object) -> tuple[None, None]:
            asked.update(given)
            return None, None

        @staticmethod
        def get_peft_model(model: None, **given: object) -> None:
            return model

    monkeypatch.setitem(sys.modules, "unsloth", SimpleNamespace(FastLanguageModel=FastLanguageModel))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(policy, "dtype_of", lambda _: torch.bfloat16)
    known = AutoConfig.from_pretrained(tiny).max_position_embeddings
    for budget, length in ((4 * known, known), (known // 2, known // 2)):
        _load_frugal(make_config(tiny, tmp_path, mode="frugal", token_budget=budget), str(tiny))
        assert asked["max_seq_length"] == length
