"""Compiled layers: norms, rotary embedding, gated MLP and LoRA's sums as a few kernels that keep less for backward."""

from __future__ import annotations

from collections.abc import Sequence

import torch

VARIANTS = 64
"""Compilations of one layer's code side by side: lengths (``plan.forest_width``) × training or not × adapter or not."""


def compile_layers(layers: Sequence[torch.nn.Module]) -> None:
    """Each by itself, in place: equal layers share their code, so the wait at the first step is one layer's."""
    torch._dynamo.config.recompile_limit = max(VARIANTS, torch._dynamo.config.recompile_limit)
    for layer in layers:
        layer.compile(dynamic=False)
