"""Gradient checkpointing where the activations would not fit: recomputing costs a third of a step, so it is used only when needed."""

from __future__ import annotations

from typing import Any

import torch

from slipstream_trainer.plan import Plan

PER_TOKEN_LAYER = 34
"""Numbers kept for a token in a layer without checkpointing, in units of the hidden size (https://arxiv.org/abs/2205.05198, with gated MLP
by its intermediate size on top; attention is never kept whole)."""
SHARE = 0.7
"""Of the free memory that activations may take."""


def activation_bytes(config: Any, tokens: int, bytes_each: int) -> int:
    """Estimate for one micro-batch without checkpointing."""
    text = config.get_text_config()
    middle = getattr(text, "intermediate_size", 4 * text.hidden_size)
    return int(tokens * text.num_hidden_layers * (PER_TOKEN_LAYER / 2 * text.hidden_size + 4 * middle) * bytes_each)


def choose_checkpointing(trainer: Any, plan: Plan) -> bool:
    """Switch it for this plan: as ``trainer.checkpointing`` says, or by what fits. On a CPU it is off unless asked for."""
    asked, base = trainer.config.trainer.checkpointing, trainer.model.get_base_model()
    on = asked == "on"
    if asked == "auto" and trainer.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(trainer.device)
        free += torch.cuda.memory_reserved(trainer.device) - torch.cuda.memory_allocated(trainer.device)
        largest = max((m.computed for m in plan.micro), default=0)
        on = activation_bytes(base.config, largest, 2) > SHARE * free
    if on != bool(getattr(base, "is_gradient_checkpointing", False)):
        if on:
            base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            base.gradient_checkpointing_disable()
    return bool(on)
