"""Gradient checkpointing of as few layers as memory asks for: recomputing all of them costs a third of a step."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from slipstream_trainer.batch.layout import Plan

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel
    from transformers.modeling_layers import GradientCheckpointingLayer


log = logging.getLogger(__name__)

PER_TOKEN_LAYER = 17
"""Numbers kept for a token in a layer without checkpointing, in units of the hidden size
(https://arxiv.org/abs/2205.05198; attention is never kept whole), before anything was measured.
"""
PER_TOKEN_MIDDLE = 4
"""The same of the gated MLP, in units of its intermediate size."""
ACTIVATION_SHARE = 0.85
"""The part of the free memory that activations may take."""
FREE_MEMORY_LOOK_S = 5.0
"""Between two looks at how much there is."""


def activation_bytes(config: PretrainedConfig, tokens: int, bytes_each: int) -> int:
    """Estimate for one layer and one micro-batch, without checkpointing."""
    text = config.get_text_config()
    middle = largest(text, "intermediate_size") or 4 * text.hidden_size
    return int(tokens * (PER_TOKEN_LAYER * text.hidden_size + PER_TOKEN_MIDDLE * middle) * bytes_each)


def largest(text: PretrainedConfig, name: str) -> int | None:
    """A size in a model's config. Gemma 4 has one for each kind of layer, and transformers then gives none for all."""
    layers = getattr(text, "per_layer_config", None) or [text]
    return max((size for layer in layers if (size := getattr(layer, name, None))), default=None)


def layers_to_checkpoint(layers: int, whole: int, entry: int, room: int) -> int:
    """How many of ``layers`` are recomputed so that the rest fits. ``whole``: bytes of a layer that keeps
    everything; ``entry``: of one that keeps its input alone; ``room``: bytes there are. While a layer is recomputed
    it is whole once more.
    """
    for k in range(layers):
        if (layers - k) * whole + k * entry + (whole if k else 0) <= room:
            return k
    return layers


def decoder_layers(model: torch.nn.Module) -> list[GradientCheckpointingLayer]:
    """The blocks that can be checkpointed one by one, first to last."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]


class Checkpointing:
    """Which layers of a trainer's model are recomputed. Learns from each micro-batch what a layer really keeps.

    Without ``layers`` it leaves the model alone.
    """

    def __init__(
        self, model: PreTrainedModel, layers: Sequence[GradientCheckpointingLayer], device: torch.device, asked: str
    ) -> None:
        self.model, self.layers, self.device, self.asked = model, layers, device, asked
        self.whole = 0.0
        """Bytes that a token leaves in a layer without checkpointing, as measured; 0: not yet."""
        self.now = 0
        self._tight = False
        self._known_room, self._looked = 0, -math.inf

    def choose(self, plan: Plan) -> int:
        """As ``trainer.checkpointing`` says, or by what fits; on a CPU only if asked for. → Layers recomputed."""
        if not self.layers:
            return 0
        count = len(self.layers)
        wanted = count if self.asked == "on" or self._tight else 0
        if self.asked == "auto" and self.device.type == "cuda" and not self._tight:
            free = self._room() - torch.cuda.memory_allocated(self.device)
            largest = max((m.computed for m in plan.micro), default=0)
            whole = int(self.whole * largest) or activation_bytes(self.model.config, largest, 2)
            entry = largest * self.model.config.get_text_config().hidden_size * 2
            wanted = layers_to_checkpoint(count, whole, entry, int(ACTIVATION_SHARE * free))
        self._set(wanted)
        return wanted

    def _room(self) -> int:
        """Bytes that no other process holds. Asking takes 15 ms where an engine works on the same GPU."""
        if (now := time.monotonic()) - self._looked > FREE_MEMORY_LOOK_S:
            free, _ = torch.cuda.mem_get_info(self.device)
            self._known_room, self._looked = free + torch.cuda.memory_reserved(self.device), now
        return self._known_room

    def _set(self, wanted: int) -> None:
        if wanted and not getattr(self.model, "is_gradient_checkpointing", False):
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        elif not wanted and getattr(self.model, "is_gradient_checkpointing", False):
            self.model.gradient_checkpointing_disable()
        if wanted:
            for i, layer in enumerate(self.layers):
                layer.gradient_checkpointing = i < wanted
        self.now = wanted

    def allocated(self) -> int:
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0

    def note(self, before: int, tokens: int) -> None:
        """Between a forward pass and its backward pass: what has it left? ``before``: ``allocated()`` ahead of it."""
        kept = len(self.layers) - self.now
        if self.device.type == "cuda" and kept and tokens:
            self.whole = max(self.whole, (self.allocated() - before) / tokens / kept)

    def forget(self) -> None:
        """Layers keep something else from now on."""
        self.whole, self._tight = 0.0, False

    def ran_out(self) -> bool:
        """The memory did not do. True: all layers will be recomputed from now on, try again."""
        if self.asked == "off" or self._tight or self.now == len(self.layers):
            return False
        self._tight = True
        self._set(len(self.layers))
        torch.cuda.empty_cache()
        log.warning("GPU memory was not enough: every layer is recomputed from now on")
        return True


def gpu_is_broken(device: torch.device) -> bool:
    """After some CUDA errors nothing works in this process any more."""
    if device.type != "cuda":
        return False
    try:
        return float(torch.ones(1, device=device).sum()) != 1.0
    except RuntimeError:
        return True
