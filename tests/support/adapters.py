"""LoRA folders: with random weights, as the trainer would write them, and with no more than a folder needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support import MODEL


def make_adapter(folder: Path, seed: int, rank: int = 16, scale: float = 0.3) -> Path:
    """An adapter that visibly changes what the model says."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model = get_peft_model(  # type: ignore[assignment]
        model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, scale / rank)
    model.save_pretrained(folder)
    return folder


def write_adapter(folder: Path, rank: int = 8, fill: int = 0, **config: object) -> Path:
    """A folder that looks like PEFT's: one float32 tensor of ``rank`` × 4."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank, "peft_type": "LORA", "bias": "none", **config}))
    data = bytes([fill, 0, 0, 0]) * (rank * 4)
    header = json.dumps(
        {"a.lora_A.weight": {"dtype": "F32", "shape": [rank, 4], "data_offsets": [0, len(data)]}}
    ).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    return folder


BROKEN = ("prefix", "layers", "names", "fused", "transposed", "swapped", "empty", "other model's", "zero", "zero A")
"""Kinds of adapters that would change nothing, or nonsense."""


def break_adapter(good: Path, folder: Path, kind: str) -> Path:
    """A copy of a Qwen3-shaped adapter, broken in one way. Raises ``ValueError`` for an unknown kind."""
    import shutil

    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(good, folder)
    weights = load_file(folder / "adapter_model.safetensors")
    if kind == "prefix":
        weights = {n.replace(".model.layers.", ".model.language_model.layers."): w for n, w in weights.items()}
    elif kind == "layers":
        weights = {
            n.replace(".layers.0.", ".layers.17.").replace(".layers.1.", ".layers.18."): w
            for n, w in weights.items()
            if ".layers.0." in n or ".layers.1." in n
        }
    elif kind == "names":
        weights = {n.replace("_proj.", "_projection."): w for n, w in weights.items()}
    elif kind == "fused":  # as Phi calls its layers
        weights = _fused(weights)
    elif kind == "swapped":  # only layers as wide as high, so that the halves fit each other
        sides = (".lora_A.", ".lora_B.")
        square = {n: w for n, w in weights.items() if ".q_proj." in n}
        weights = {n.replace(*(sides if sides[0] in n else sides[::-1])): w for n, w in square.items()}
    elif kind == "transposed":
        weights = {n: w.T.contiguous() for n, w in weights.items()}
    elif kind == "empty":
        weights = {}
    elif kind == "other model's":  # half as wide
        weights = {
            n: (w[:, : w.shape[1] // 2] if ".lora_A." in n else w[: w.shape[0] // 2]).contiguous()
            for n, w in weights.items()
        }
    elif kind in ("zero", "zero A"):
        half = ".lora_A." if kind == "zero A" else ".lora_B."
        weights = {n: torch.zeros_like(w) if half in n else w for n, w in weights.items()}
    else:
        raise ValueError(kind)
    save_file(weights, folder / "adapter_model.safetensors")
    return folder


def _fused(weights: dict[str, Any]) -> dict[str, Any]:
    """q, k and v as one layer, and gate and up as one: A of the first, and all B on top of each other."""
    import torch

    made = {}
    for first, fused, parts in (("q_proj", "qkv_proj", ("q", "k", "v")), ("gate_proj", "gate_up_proj", ("gate", "up"))):
        for name, weight in weights.items():
            if f".{first}.lora_A." in name:
                outer = name.replace(".lora_A.", ".lora_B.")
                rows = [weights[outer.replace(first, f"{part}_proj")] for part in parts]
                made[name.replace(first, fused)] = weight
                made[outer.replace(first, fused)] = torch.cat(rows).contiguous()
    return made
