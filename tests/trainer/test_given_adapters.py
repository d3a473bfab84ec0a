"""An adapter that others made: the trainer starts from the very policy that PEFT computes, or refuses it in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import peft_variants
from tests.support.peft_variants import VARIANTS
from tests.support.tiny import make_config

from slipstream.errors import ConfigError, StartError
from slipstream.shared.adapter_config import AdapterConfig, BadAdapter
from slipstream_proxy.control.adapters.files import check_folder
from slipstream_trainer.model.adapter import distance, load_adapter
from slipstream_trainer.model.policy import load_policy

pytestmark = pytest.mark.filterwarnings("ignore")
IDS = torch.arange(3, 40)[None]


def logprobs(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=IDS).logits.float(), -1)


@pytest.fixture(scope="module")
def policy(tiny, tmp_path_factory):
    """One for all: each adapter has to replace the one before wholly."""
    return load_policy(make_config(tiny, tmp_path_factory.mktemp("p"), lora_alpha=24.0))[0]


@pytest.fixture(scope="module")
def base(tiny):
    from transformers import AutoModelForCausalLM

    return lambda: AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_trainer_starts_from_what_peft_computes_or_says_why_not(tiny, tmp_path, policy, base, name: str) -> None:
    from peft import PeftModel

    variant = VARIANTS[name]
    folder = peft_variants.save(variant, tiny, tmp_path / "m@1")
    taken = variant.refused is None if variant.proxy is None else variant.proxy
    if taken:
        assert check_folder(folder, 16)
    else:
        with pytest.raises(BadAdapter) as why:
            check_folder(folder, 16)
        assert variant.refused and variant.refused in str(why.value)
    before = logprobs(policy)
    if variant.refused is not None:
        with pytest.raises(ConfigError) as refusal:
            load_adapter(policy, folder)
        assert variant.refused in str(refusal.value)
        assert torch.equal(logprobs(policy), before), "a refusal changes nothing"
        return
    theirs = logprobs(PeftModel.from_pretrained(base(), folder))
    assert float((theirs - logprobs(base())).abs().max()) > 0.01, "the adapter is no nothing"
    load_adapter(policy, folder)
    assert float((logprobs(policy) - theirs).abs().max()) < 1e-5
    assert distance(policy, folder) < 1e-6
    policy.save_pretrained(tmp_path / "again")
    again = logprobs(PeftModel.from_pretrained(base(), tmp_path / "again"))
    assert float((again - theirs).abs().max()) < 1e-5, "what is published is the same policy"


def test_every_field_of_peft_is_thought_of() -> None:
    """A field that a newer PEFT has is looked at by somebody before it changes what an adapter computes."""
    from dataclasses import fields

    from peft import LoraConfig

    from slipstream.shared.adapter_config import REFUSED_FIELDS

    read = {
        "r",
        "lora_alpha",
        "use_rslora",
        "rank_pattern",
        "alpha_pattern",
        "init_lora_weights",
        "peft_type",
        "target_parameters",
    }
    in_the_weights = {"target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "fan_in_fan_out"}
    without_effect = {
        "lora_dropout", "eva_config", "corda_config", "loftq_config", "lora_ga_config", "qalora_group_size", "megatron_core", "runtime_config",
        "ensure_weight_tying", "task_type", "inference_mode", "auto_mapping", "peft_version", "base_model_name_or_path", "revision",
    }  # fmt: skip
    assert {f.name for f in fields(LoraConfig)} == read | in_the_weights | without_effect | set(REFUSED_FIELDS)


def test_patterns_are_matched_as_peft_matches_them(tmp_path: Path) -> None:
    from peft.utils.other import get_pattern_key

    keys = [
        "q_proj",
        "layers.1.mlp.up_proj",
        r".*\.self_attn\..*",
        "proj",
        "[kv]_proj",
        "^model.layers.0.mlp.up_proj",
        "up|down",
    ]
    modules = [
        f"model.layers.{n}.{part}"
        for n in (0, 1, 11)
        for part in ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj", "mlp.up", "mlp.down_proj", "mlp.proj")
    ]
    for order in (keys, keys[::-1]):
        pattern = {key: n + 2 for n, key in enumerate(order)}
        (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 99, "lora_alpha": 7, "rank_pattern": pattern}))
        config = AdapterConfig.read(tmp_path)
        for module in modules:
            assert config.rank_of(module) == pattern.get(get_pattern_key(order, module), 99)


def changed(folder: Path, rename: Any) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "adapter_model.safetensors")
    save_file({rename(name): weight for name, weight in weights.items()}, folder / "adapter_model.safetensors")


def test_another_models_layers_are_not_asked_for_in_the_settings(tiny, tmp_path, policy) -> None:
    """As of a model that also sees, whose text layers have another name."""
    folder = peft_variants.save(VARIANTS["plain"], tiny, tmp_path / "m@1")
    changed(folder, lambda name: name.replace("model.layers", "model.language_model.layers"))
    with pytest.raises(StartError, match=r"not of this model, which has no model\.language_model\.layers.*14 such"):
        load_adapter(policy, folder)


def test_a_folder_without_peft_s_weights_is_not_looked_for_on_the_hub(tiny, tmp_path, policy) -> None:
    folder = peft_variants.save(VARIANTS["plain"], tiny, tmp_path / "m@1")
    (folder / "adapter_model.safetensors").rename(folder / "adapters.safetensors")
    with pytest.raises(StartError, match=r"adapter_model\.safetensors is missing: save the adapter with PEFT"):
        load_adapter(policy, folder)
