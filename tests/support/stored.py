"""A model's weights as publishers of quantised ones store them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

EIGHT_BITS = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
STORED: dict[str, dict[str, Any]] = {
    "fp8": {"activation_scheme": "dynamic", "fmt": "e4m3"},
    "compressed-tensors": {
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": EIGHT_BITS}},
        "ignore": ["lm_head"],
    },
    "awq": {"bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
    "gptq": {"bits": 4, "group_size": 32, "desc_act": False},
    "bitsandbytes": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
}
"""Method → the rest of a published model's ``quantization_config``."""


def in_fp8(weight: torch.Tensor, kind: str, block: int) -> dict[str, torch.Tensor]:
    """Its tensors in the file, by the ending of their names."""
    if kind == "compressed-tensors":
        scale = weight.abs().amax(1, keepdim=True) / 448
        return {"": (weight / scale).to(torch.float8_e4m3fn), "_scale": scale}
    out, into = weight.shape
    blocks = weight.reshape(out // block, block, into // block, block)
    scale = blocks.abs().amax((1, 3)) / 448
    small = (blocks / scale[:, None, :, None]).reshape(out, into).to(torch.float8_e4m3fn)
    return {"": small, "_scale_inv": scale}


def quantization(kind: str, block: int) -> dict[str, Any]:
    return {"quant_method": kind} | STORED[kind] | ({"weight_block_size": [block, block]} if kind == "fp8" else {})


def stored(base: Path, folder: Path, kind: str, block: int = 16) -> Path:
    """The model of ``base`` with the weights of its layers as ``kind`` has them."""
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(base / "model.safetensors").items():
        small = in_fp8(tensor.float(), kind, block) if name.endswith("proj.weight") else {"": tensor}
        tensors |= {name + ending: made.contiguous() for ending, made in small.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    described = json.loads((folder / "config.json").read_text())
    described["quantization_config"] = quantization(kind, block)
    (folder / "config.json").write_text(json.dumps(described))
    return folder
