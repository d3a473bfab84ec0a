"""Tiny models of many families, with random weights: two layers, hidden size 64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.tiny import add_tokenizer

SHAPE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "max_position_embeddings": 4096, "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MIXTRAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED = {
    "n_routed_experts": 4, "n_shared_experts": 1, "moe_intermediate_size": 32, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
    "n_group": 1, "topk_group": 1,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "num_key_value_heads": 4,
}  # fmt: skip
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32}
SCALED = {"initializer_range": 0.05}
"""Gemma multiplies its embeddings, so that larger weights would make it sure of one token."""
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {}, "qwen2": {}, "qwen3": {}, "phi3": {}, "granite": {}, "olmo2": {}, "smollm3": {}, "cohere2": SLIDING,
    "glm4": {}, "seed_oss": {}, "olmo3": SLIDING, "gemma2": SCALED, "gemma3_text": SLIDING | SCALED,
    "qwen3_moe": EXPERTS, "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 64}, "mixtral": MIXTRAL,
    "deepseek_v2": ROUTED | LATENT, "deepseek_v3": ROUTED | LATENT, "glm4_moe": ROUTED, "granitemoe": MIXTRAL,
    "qwen3_next": EXPERTS | LINEAR | {"shared_expert_intermediate_size": 64}, "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": MIXTRAL | SLIDING, "ernie4_5_moe": {
        "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 1, "moe_layer_start_index": 1,
    },
    "granitemoehybrid": MIXTRAL | MAMBA | {"shared_intermediate_size": 64, "layer_types": ["mamba", "attention"]},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 16},
    "lfm2": {"layer_types": ["conv", "full_attention"], "conv_dim": 64, "block_dim": 64},
}  # fmt: skip
"""transformers' model type → what its config needs beyond ``SHAPE``."""


def make_family(family: str, folder: Path, **changes: Any) -> Path:
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(7)
    described = CONFIG_MAPPING[family](**(SHAPE | FAMILIES[family] | changes))
    model = AutoModelForCausalLM.from_config(described, dtype=torch.float32)
    model.save_pretrained(folder)
    add_tokenizer(folder)
    return folder
