"""Adapters that each have one answer of their own: python -m benchmarks.engine.make_adapters CONFIG_DIR OUT NAME COUNT

Each adds a huge direction of its own to the last layer's output, always with the same sign, so that an adapter has one token which it
says whatever it is asked. Where the vocabulary has two tokens that lie nearly alike in that direction, rounding may choose between them:
`swaps.py` finds out which these are.

The sign is what takes three matrices. A projection of the layer's input is positive or negative by chance. Two neurons get it through
gate and up, one of them turned around: the SiLU of the gate lets one of them through, and gate times up is its square.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

RANK = 16
STEEP = 1e3
SIZE = 1e3


def make(config: dict[str, int], folder: Path, base: str, seed: int) -> None:
    """Files in PEFT's form, for the last layer's MLP. lora_A (R: rank, I or H: input), lora_B (output, R)."""
    generator = torch.Generator().manual_seed(seed)
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    in_RH = torch.randn(RANK, hidden, generator=generator) / hidden**0.5
    pairs_IR = torch.zeros(intermediate, RANK)
    for r in range(RANK):
        pairs_IR[2 * r, r], pairs_IR[2 * r + 1, r] = STEEP, -STEEP
    sum_RI = torch.zeros(RANK, intermediate)
    sum_RI[0, : 2 * RANK] = 1.0
    out_HR = torch.zeros(hidden, RANK)
    out_HR[:, 0] = SIZE * torch.randn(hidden, generator=generator)
    layer = f"base_model.model.model.layers.{config['num_hidden_layers'] - 1}.mlp"
    parts = {"gate_proj": (in_RH, pairs_IR), "up_proj": (in_RH, pairs_IR), "down_proj": (sum_RI, out_HR)}
    weights = {
        f"{layer}.{name}.lora_{which}.weight": matrix
        for name, both in parts.items()
        for which, matrix in zip("AB", both, strict=True)
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.to(torch.bfloat16).clone() for k, v in weights.items()}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(
        json.dumps(
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "r": RANK,
                "lora_alpha": RANK,
                "lora_dropout": 0.0,
                "bias": "none",
                "target_modules": sorted(parts),
                "base_model_name_or_path": base,
            }
        )
    )


def main() -> None:
    source, out, name, count = sys.argv[1:]
    config = json.loads((Path(source) / "config.json").read_text())
    for n in range(1, int(count) + 1):
        make(config, Path(out) / f"{name}@{n}", source, n)


if __name__ == "__main__":
    main()
