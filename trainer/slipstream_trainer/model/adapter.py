"""A LoRA that was learned elsewhere, or with other settings, becomes the policy's own: the same function, to the last
bits of a float.

The policy has its own rank and scale. B is multiplied by the ratio of the two scales. A smaller rank is filled up: the
new columns of B are zero, and the new rows of A are as they were, so that they can learn. A layer that the LoRA does
not have gets a B of zero.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

from slipstream.errors import ConfigError, StartError
from slipstream.shared.adapter_config import (
    CONFIG_FILE_NAME,
    WEIGHT_NAME_PATTERN,
    WEIGHTS_FILE_NAME,
    AdapterConfig,
    BadAdapter,
)

PEFT_ADAPTER_NAME = "default"
"""PEFT's name of the one adapter."""
_PARAMETER = re.compile(rf"^base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.{PEFT_ADAPTER_NAME}\.weight$")
OLDER_WEIGHTS_FILE_NAME = "adapter_model.bin"
MERGE_ADVICE = "merge the adapter into the base model (PEFT's merge_and_unload), and train that"
Halves = dict[str, dict[str, torch.Tensor]]
"""Module's path in the base model → ``A`` and ``B``."""


_LAYERS: WeakKeyDictionary[torch.nn.Module, dict[str, Any]] = WeakKeyDictionary()


def layers_of(model: torch.nn.Module) -> dict[str, Any]:
    """Module's path in the base model → PEFT's layer."""
    if (known := _LAYERS.get(model)) is not None:
        return known
    prefix = "base_model.model."
    named = ((n.removeprefix(prefix), m) for n, m in model.named_modules())
    found = {name: m for name, m in named if PEFT_ADAPTER_NAME in getattr(m, "lora_A", {})}
    if found:
        _LAYERS[model] = found
    return found


def scales_of(model: torch.nn.Module) -> dict[str, float]:
    """Module's path in the base model → by what B · A is multiplied."""
    return {name: float(layer.scaling[PEFT_ADAPTER_NAME]) for name, layer in layers_of(model).items()}


def halves_of(weights: dict[str, torch.Tensor]) -> Halves:
    """Of a policy's trained weights by name."""
    found: Halves = {}
    for name, weight in weights.items():
        if part := _PARAMETER.match(name):
            found.setdefault(part["module"], {})[part["side"]] = weight
    return found


def fit(model: torch.nn.Module, halves: Halves, scale_of: Callable[[str], float], whose: str) -> None:
    """Put ``halves`` into the policy. ``scale_of``: by what theirs is multiplied, of a module. ``whose``: for people.

    Raises ``ConfigError`` for what these settings have no place for, and ``StartError`` for another model's; both
    before anything is changed.
    """
    layers = layers_of(model)
    used = {name: ab for name, ab in halves.items() if name in layers or bool(ab["B"].any())}
    _check_model(model, used, whose)
    _check_places(layers, used, whose)
    with torch.no_grad():
        for name, layer in layers.items():
            a, b = layer.lora_A[PEFT_ADAPTER_NAME].weight, layer.lora_B[PEFT_ADAPTER_NAME].weight
            if name not in used:
                b.zero_()
                continue
            theirs_a, theirs_b = used[name]["A"], used[name]["B"]
            rank, ratio = len(theirs_a), scale_of(name) / float(layer.scaling[PEFT_ADAPTER_NAME])
            made_a, made_b = a.detach().clone(), torch.zeros_like(b)
            made_a[:rank] = theirs_a.to(a)
            made_b[:, :rank] = (theirs_b.double() * ratio).to(b)
            a.copy_(made_a)
            b.copy_(made_b)


def _check_model(model: torch.nn.Module, halves: Halves, whose: str) -> None:
    """Raises ``StartError``."""
    known = {name.removeprefix("base_model.model.") for name, _ in model.named_modules()}
    if strange := [name for name in halves if name not in known]:
        raise StartError(
            f"{whose} is not of this model, which has no {strange[0]} ({len(strange)} such): give one that was trained "
            "on trainer.model, or save it again with that model's names of its layers"
        )


def _check_places(layers: dict[str, Any], halves: Halves, whose: str) -> None:
    if strange := [name for name in halves if name not in layers]:
        kinds = ", ".join(sorted({name.rpartition(".")[2] for name in strange}))
        raise ConfigError(
            f"{whose} adapts {len(strange)} layers that trainer.lora_targets leaves out ({strange[0]}; in all: {kinds})"
            f": add them to trainer.lora_targets; if they are no linear layers of this model's blocks, {MERGE_ADVICE}"
        )
    ranks = {name: len(ab["A"]) for name, ab in halves.items()}
    room = min(layer.r[PEFT_ADAPTER_NAME] for layer in layers.values())
    if (most := max(ranks.values(), default=0)) > room:
        raise ConfigError(
            f"{whose} has the rank {most}, and trainer.lora_rank is {room}: set trainer.lora_rank = {most} (and "
            f"engine.max_lora_rank to at least that)"
        )
    for name, ab in halves.items():
        own = layers[name]
        inputs, outputs = own.lora_A[PEFT_ADAPTER_NAME].weight.shape[1], own.lora_B[PEFT_ADAPTER_NAME].weight.shape[0]
        if ab["A"].shape[1:] != (inputs,) or ab["B"].shape != (outputs, ranks[name]):
            shapes = f"A {tuple(ab['A'].shape)} and B {tuple(ab['B'].shape)}"
            raise StartError(
                f"{whose} is not of this model: {name} has {shapes}, and the layer has {inputs} inputs and {outputs} "
                "outputs"
            )


def load_adapter(model: torch.nn.Module, folder: Path) -> None:
    """The policy becomes the one that PEFT and vLLM make of an adapter's folder, by its own rank and scale.

    Raises ``StartError`` for files that can't be read or are another model's, and ``ConfigError`` for what Slipstream
    does not train: it names field and fix.
    """
    halves, config = read_adapter(folder)
    fit(model, halves, config.scale_of, f"the adapter {folder}")


def read_adapter(folder: Path) -> tuple[Halves, AdapterConfig]:
    """An adapter's folder. Raises as ``load_adapter`` does."""
    from peft import load_peft_weights

    whose = f"the adapter {folder}"
    try:
        config = AdapterConfig.read(folder)
        if not any((folder / name).is_file() for name in (WEIGHTS_FILE_NAME, OLDER_WEIGHTS_FILE_NAME)):
            raise StartError(f"{whose}: {WEIGHTS_FILE_NAME} is missing: save the adapter with PEFT's save_pretrained")
        weights = load_peft_weights(str(folder), device="cpu")
        halves: Halves = {}
        for name, weight in weights.items():
            if not (part := WEIGHT_NAME_PATTERN.match(name)):
                raise ConfigError(f"{whose}: {name} is no lora_A or lora_B of a linear layer: {MERGE_ADVICE}")
            halves.setdefault(part["module"], {})[part["side"]] = weight
        if config.parameters:
            wanted = f"{CONFIG_FILE_NAME}: target_parameters = {list(config.parameters)}"
            raise ConfigError(
                f"{whose}: {wanted}: the trainer adapts linear layers, and no such tensors: {MERGE_ADVICE}"
            )
        for name, ab in halves.items():
            if ab.keys() != {"A", "B"}:
                raise StartError(f"{whose}: {name} has no lora_{'B' if 'A' in ab else 'A'}")
            config.check_rank(name, len(ab["A"]))
    except BadAdapter as e:
        raise (ConfigError if (folder / CONFIG_FILE_NAME).is_file() else StartError)(
            f"{whose} can't be loaded: {e}"
        ) from e
    except (OSError, ValueError, RuntimeError) as e:
        raise StartError(f"{whose} can't be loaded: {e}") from e
    return halves, config


def changes_base(model: torch.nn.Module) -> bool:
    """Whether the policy is another than the base model."""
    return any(bool(layer.lora_B[PEFT_ADAPTER_NAME].weight.any()) for layer in layers_of(model).values())


def distance(model: torch.nn.Module, folder: Path) -> float:
    """How far the policy's changes of the base weights are from those of an adapter's folder, over the latter's size.

    Raises ``StartError`` and ``ConfigError`` as ``load_adapter`` does.
    """
    halves, config = read_adapter(folder)
    apart, size = 0.0, 0.0
    for name, layer in layers_of(model).items():
        ours = (
            layer.lora_A[PEFT_ADAPTER_NAME].weight,
            layer.lora_B[PEFT_ADAPTER_NAME].weight,
            layer.scaling[PEFT_ADAPTER_NAME],
        )
        parts = [ours]
        if name in halves:
            parts.append((halves[name]["A"], halves[name]["B"], -config.scale_of(name)))
            size += _square(parts[1:])
        apart += _square(parts)
    return math.sqrt(apart / size) if size else math.inf if apart else 0.0


def _square(parts: list[tuple[torch.Tensor, torch.Tensor, float]]) -> float:
    """The squared norm of the sum of scale · B · A, without a matrix as large as the layer."""
    a = torch.cat([a.detach().cpu().double() for a, _, _ in parts])
    b = torch.cat([b.detach().cpu().double() * scale for _, b, scale in parts], 1)
    return max(0.0, float(((a @ a.T) * (b.T @ b)).sum()))


def check_adapter(folder: Path, max_rank: int) -> str | None:
    """Why vLLM would refuse the adapter in ``folder`` (PEFT's files), or None."""
    try:
        AdapterConfig.read(folder, max_rank)
    except BadAdapter as e:
        return str(e)
    return None if (folder / WEIGHTS_FILE_NAME).is_file() else f"{WEIGHTS_FILE_NAME} is missing"
