"""LoRA folders with random weights, as the trainer would write them."""

from __future__ import annotations

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
