"""LoRA folders: with random weights, as the trainer would write them, and with no more than a folder needs."""

from __future__ import annotations

import json
from pathlib import Path

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
