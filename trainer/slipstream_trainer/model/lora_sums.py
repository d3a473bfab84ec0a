"""LoRA's sums with few kernels: y = W x + scale · B (A x), the last product added to the first as it is made.

PEFT's layer casts, multiplies by the scale and adds in kernels of their own, nine where two compute. For a small model
each takes as long as the product itself. Rounded once, the sum is also nearer to the engine's.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch.nn.functional import linear

from slipstream_trainer.model.adapter import PEFT_ADAPTER_NAME, layers_of


def _forward(layer: Any, x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = layer.base_layer(x)
    a, b = layer.lora_A[PEFT_ADAPTER_NAME].weight, layer.lora_B[PEFT_ADAPTER_NAME].weight
    low = linear(x, a.to(y.dtype)).reshape(-1, a.shape[0])
    scale = layer.scaling[PEFT_ADAPTER_NAME]
    return torch.addmm(y.reshape(-1, y.shape[-1]), low, b.to(y.dtype).t(), alpha=scale).view(y.shape)


def use_sums(model: torch.nn.Module) -> int:
    """In place of PEFT's own forward, where that would compute the same: one adapter on a linear layer, without dropout
    or a variant (DoRA). → Layers that changed.
    """
    from peft.tuners.lora.layer import Linear

    found: list[Any] = [layer for layer in layers_of(model).values() if type(layer) is Linear and _is_plain(layer)]
    for layer in found:
        layer.forward = MethodType(_forward, layer)
    return len(found)


def _is_plain(layer: Any) -> bool:
    bias = any(getattr(half[PEFT_ADAPTER_NAME], "bias", None) is not None for half in (layer.lora_A, layer.lora_B))
    variant = PEFT_ADAPTER_NAME in getattr(layer, "lora_variant", {})
    dropout = isinstance(layer.lora_dropout[PEFT_ADAPTER_NAME], torch.nn.Identity)
    linear_base = type(layer.base_layer) is torch.nn.Linear
    return linear_base and dropout and not (bias or variant or layer.merged or layer.fan_in_fan_out)
