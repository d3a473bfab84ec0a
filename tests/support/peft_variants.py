"""Adapters as others make them with PEFT: each variant of its ``LoraConfig`` that a folder can have, saved by PEFT."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class Variant:
    """``refused``: words with which Slipstream refuses it; None: taken. ``vllm``: vLLM 0.32 takes it."""

    config: dict[str, Any]
    refused: str | None = None
    vllm: bool = True
    written: dict[str, Any] = field(default_factory=dict)
    """Fields that are set in the saved file alone."""
    proxy: bool | None = None
    """Whether the upload is taken, where that is not what the trainer says."""
    changed: Callable[[Any, Path], None] | None = None
    """In place of PEFT's own saving."""


def _converted(model: Any, folder: Path) -> None:
    """PiSSA as PEFT makes it plain: twice the rank, and for the model's own weights."""
    model.save_pretrained(folder, path_initial_model_for_weight_conversion=str(folder / "initial"))


VARIANTS: dict[str, Variant] = {
    "plain": Variant({}),
    "alpha 8": Variant({"lora_alpha": 8}),
    "alpha 64, rank 4": Variant({"r": 4, "lora_alpha": 64}),
    "rsLoRA": Variant({"use_rslora": True}),
    "alpha_pattern": Variant({"alpha_pattern": {"q_proj": 4}}),
    "rank_pattern": Variant({"rank_pattern": {"q_proj": 4, "layers.1.mlp.up_proj": 2}}),
    "both patterns, rsLoRA": Variant(
        {
            "use_rslora": True,
            "rank_pattern": {r".*\.self_attn\..*": 4, "layers.0.mlp.down_proj": 6},
            "alpha_pattern": {"layers.0.self_attn.q_proj": 64, "[kv]_proj": 2, "proj": 3},
        }
    ),
    "few layers": Variant({"target_modules": ["q_proj", "v_proj"]}),
    "exclude_modules": Variant({"exclude_modules": ["down_proj", "k_proj"]}),
    "layers_to_transform": Variant({"layers_to_transform": [1], "layers_pattern": "layers"}),
    "expression": Variant({"target_modules": r".*layers\.0\.self_attn\.[qv]_proj"}),
    "dropout": Variant({"lora_dropout": 0.3}),
    "gaussian": Variant({"init_lora_weights": "gaussian"}),
    "orthogonal": Variant({"init_lora_weights": "orthogonal"}),
    "mica": Variant({"init_lora_weights": "mica"}),
    "eva": Variant({}, written={"init_lora_weights": "eva", "eva_config": {"rho": 2.0}}),
    "lora_ga": Variant({}, written={"init_lora_weights": "lora_ga"}),
    "random start": Variant({"init_lora_weights": False}),
    "PiSSA, converted": Variant({"r": 4, "init_lora_weights": "pissa"}, changed=_converted),
    "fan_in_fan_out": Variant({}, written={"fan_in_fan_out": True}),
    "unknown field": Variant({}, written={"corda_config": None, "something_new": None}),
    "rank above": Variant({"r": 12}, "set trainer.lora_rank = 12", proxy=True),
    "rank_pattern above": Variant({"rank_pattern": {"q_proj": 16}}, "set trainer.lora_rank = 16", proxy=True),
    "lm_head": Variant({"target_modules": ["q_proj", "lm_head"]}, "lm_head.base_layer.weight is no lora_A", proxy=True),
    "embed_tokens": Variant(
        {"target_modules": ["q_proj", "embed_tokens"]}, "is no lora_A or lora_B of a linear layer", proxy=True
    ),
    "wrong r": Variant({"r": 4}, "the rank 8, and its weights have 4", written={"r": 8}),
    "DoRA": Variant({"use_dora": True}, "use_dora = true: the adapter has DoRA", vllm=False),
    "bias": Variant({"bias": "lora_only"}, 'bias = "lora_only"', vllm=False),
    "lora_bias": Variant({"lora_bias": True}, "lora_bias = true", vllm=False),
    "modules_to_save": Variant({"modules_to_save": ["lm_head"]}, 'modules_to_save = ["lm_head"]', vllm=False),
    "trainable_token_indices": Variant({"trainable_token_indices": [3, 4]}, "trainable_token_indices = ", vllm=False),
    "PiSSA": Variant({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa'", vllm=False),
    "OLoRA": Variant({"init_lora_weights": "olora"}, "path_initial_model_for_weight_conversion", vllm=False),
    "CorDA": Variant({}, "init_lora_weights = 'corda'", vllm=False, written={"init_lora_weights": "corda"}),
    "LoftQ": Variant({}, "init_lora_weights = 'loftq'", vllm=False, written={"init_lora_weights": "loftq"}),
    "layer_replication": Variant({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication = ", vllm=False),
    "aLoRA": Variant({"alora_invocation_tokens": [5, 6]}, "alora_invocation_tokens = [5, 6]", vllm=False),
    "QALoRA": Variant({}, "use_qalora = true", vllm=False, written={"use_qalora": True}),
    "BD-LoRA": Variant({}, "use_bdlora = ", vllm=False, written={"use_bdlora": {"nblocks": 2}}),
    "KaSA": Variant({"kasa_config": {}}, "kasa_config = ", vllm=False),
    "VeLoRA": Variant({"velora_config": {}}, "velora_config = ", vllm=False),
    "Monteclora": Variant({"monteclora_config": {}}, "monteclora_config = ", vllm=False),
    "Arrow": Variant({}, "arrow_config = ", written={"arrow_config": {"top_k": 2}}),
    "Megatron": Variant({}, "megatron_config = ", written={"megatron_config": {"hidden_size": 32}}),
    "AdaLoRA": Variant({}, "peft_type 'ADALORA'", written={"peft_type": "ADALORA"}),
    "no expression": Variant({}, "rank_pattern, q_proj(: ", vllm=False, written={"rank_pattern": {"q_proj(": 4}}),
}


def save(variant: Variant, base: Path, folder: Path) -> Path:
    """As PEFT saves it, with B that matters."""
    import torch
    from peft import KasaConfig, LoraConfig, MontecloraConfig, VeloraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    sub = {"kasa_config": KasaConfig, "monteclora_config": MontecloraConfig, "velora_config": VeloraConfig}
    wanted: dict[str, Any] = {"r": 8, "lora_alpha": 32, "target_modules": LINEAR, "task_type": "CAUSAL_LM"}
    wanted |= {k: sub[k](**v) if k in sub else v for k, v in variant.config.items()}
    torch.manual_seed(5)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = get_peft_model(plain, LoraConfig(**wanted))
    if variant.changed:
        (folder / "initial").mkdir(parents=True)
        made: Any = model.peft_config["default"]
        made.init_lora_weights = True
        model.save_pretrained(str(folder / "initial"))
        made.init_lora_weights = wanted["init_lora_weights"]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "lora_embedding_B" in name or "lora_magnitude" in name or not parameter.any():
                parameter.add_(torch.randn(parameter.shape) * 0.05)
    (variant.changed or (lambda m, f: m.save_pretrained(f)))(model, folder)
    place = folder / "adapter_config.json"
    if variant.written:
        place.write_text(json.dumps(json.loads(place.read_text()) | variant.written))
    return folder
