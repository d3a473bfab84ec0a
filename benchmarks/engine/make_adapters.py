"""Adapters that each have one answer of their own: python benchmarks/engine/make_adapters.py CONFIG_DIR OUT NAME COUNT

Each adds a huge constant direction of its own in the last layer, which outweighs all else, so that the likeliest next token is the
adapter's and does not depend on rounding or on what else is in the batch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

RANK = 16
SIZE = 1e5


def make(config: dict[str, int], folder: Path, base: str, seed: int) -> None:
    """Files in PEFT's form: ``down_proj`` of the last layer. lora_A (RANK, intermediate), lora_B (hidden, RANK)."""
    generator = torch.Generator().manual_seed(seed)
    name = f"base_model.model.model.layers.{config['num_hidden_layers'] - 1}.mlp.down_proj"
    down_RI = torch.randn(1, config["intermediate_size"], generator=generator).expand(RANK, -1)
    up_HR = torch.zeros(config["hidden_size"], RANK)
    up_HR[:, 0] = SIZE * torch.randn(config["hidden_size"], generator=generator)
    weights = {f"{name}.lora_A.weight": down_RI, f"{name}.lora_B.weight": up_HR}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.to(torch.bfloat16).contiguous() for k, v in weights.items()}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(
        json.dumps(
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "r": RANK,
                "lora_alpha": RANK,
                "lora_dropout": 0.0,
                "bias": "none",
                "target_modules": ["down_proj"],
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
