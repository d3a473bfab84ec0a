"""Which modules of a model LoRA may adapt so that vLLM takes the result: its linear layers, but not the head."""

from __future__ import annotations

import difflib
import importlib.util
from typing import Any

import torch

from slipstream.config import Config
from slipstream.errors import ConfigError


def linear_layers(path: str) -> list[str]:
    """Full names, by the model's ``config.json`` alone. Raises transformers' error for an unknown model."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))
    head = model.get_output_embeddings()
    return [name for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head]


def check_targets(config: Config, path: str) -> None:
    """Raises ``ConfigError`` for a target that the model does not have as a linear layer: PEFT would leave it out
    without a word, or adapt what vLLM does not take.
    """
    wanted = config.trainer.lora_targets
    if isinstance(wanted, str):
        return
    there = linear_layers(path)
    short = sorted({name.rpartition(".")[2] for name in there})
    for target in wanted:
        if not any(name == target or name.endswith(f".{target}") for name in there):
            near = difflib.get_close_matches(target, short, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(short)}"
            raise ConfigError(f"trainer.lora_targets: {path} has no linear layer {target!r}; {hint}")


def check_quantize(config: Config) -> None:
    """Raises ``ConfigError`` where a 4-bit base can't be loaded."""
    if config.trainer.quantize != "4bit":
        return
    if not torch.cuda.is_available():
        raise ConfigError("trainer.quantize = '4bit' needs a GPU")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError("trainer.quantize = '4bit' needs bitsandbytes: pip install bitsandbytes")
