"""Nested tables of tensors and plain values in one safetensors file: whoever reads it runs nothing, whoever wrote it.

The tree stands as JSON in the file's metadata. A tensor's place in it is its name in the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

TREE_KEY = "tree"


def save_tree(tree: object, path: Path) -> None:
    """Raises ``TypeError`` for a value that is neither a tensor nor a table, a list, a number or a text."""
    tensors: dict[str, torch.Tensor] = {}
    said = json.dumps(_said(tree, tensors))
    save_file(tensors or {"": torch.zeros(0)}, path, {TREE_KEY: said})


def _said(value: object, tensors: dict[str, torch.Tensor]) -> object:
    if isinstance(value, torch.Tensor | np.ndarray):
        name = str(len(tensors))
        # a copy: two names of one memory are refused
        tensors[name] = torch.as_tensor(value).detach().to("cpu", copy=True).contiguous()
        return {"array" if isinstance(value, np.ndarray) else "tensor": name}
    if isinstance(value, dict):
        return {"table": [[_said(k, tensors), _said(v, tensors)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_said(v, tensors) for v in value]}
    if isinstance(value, list):
        return [_said(v, tensors) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be kept")


def load_tree(path: Path) -> Any:
    """Raises ``SafetensorError``, ``ValueError``, ``KeyError`` or ``TypeError`` for a file that is none of ours."""
    with safe_open(path, framework="pt", device="cpu") as file:
        said = json.loads(file.metadata()[TREE_KEY])
        return _read(said, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 - no mapping


def _read(said: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(said, list):
        return [_read(v, tensors) for v in said]
    if not isinstance(said, dict):
        return said
    ((kind, value),) = said.items()
    if kind == "table":
        return {_read(k, tensors): _read(v, tensors) for k, v in value}
    if kind == "tuple":
        return tuple(_read(v, tensors) for v in value)
    return tensors[value].numpy() if kind == "array" else tensors[value]
