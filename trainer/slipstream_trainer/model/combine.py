"""A weighted sum of what LoRAs change, as one LoRA.

The sum of s · B · A over adapters is again a product of two matrices, of the ranks' sum as rank. Its best approximation
of the rank that there is room for is that of the largest singular values (Eckart and Young, 1936). They are found
without a matrix as large as the layer: two QR decompositions of the stacked halves, and an SVD of what is between them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from slipstream.errors import StartError
from slipstream.shared.adapter_config import CONFIG_FILE_NAME, WEIGHTS_FILE_NAME
from slipstream_trainer.model.adapter import Halves, read_adapter

MOST_WEIGHT = 1e4
"""Above it a sum means nothing: what is learned changes a layer's weights by far less than one."""
ROW_NORM = math.sqrt(1 / 3)
"""Of a row of A as PEFT begins it (uniform, of variance 1 / (3 · inputs)). B learns as fast as it is long."""

Weighted = tuple[Path, float]
"""An adapter's folder, and by what its change of the base model is multiplied."""


def combine(parts: Sequence[Weighted], rank: int, folder: Path) -> float:
    """Write PEFT's files of the sum into ``folder``. → The share of its squared size that the rank has room for.

    Raises ``StartError`` and ``ConfigError`` for adapters that cannot be read.
    """
    stacked: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for path, weight in parts:
        halves, config = read_adapter(path)
        for module, ab in halves.items():
            scaled = ab["B"].float() * (weight * config.scale_of(module))
            stacked.setdefault(module, []).append((scaled, ab["A"].float()))
    rank = min(rank, max((sum(len(a) for _, a in products) for products in stacked.values()), default=rank))
    weights, kept, whole = dict[str, torch.Tensor](), 0.0, 0.0
    for module, products in stacked.items():
        b, a, (has, of) = _reduced(products, rank)
        weights[f"base_model.model.{module}.lora_A.weight"] = a
        weights[f"base_model.model.{module}.lora_B.weight"] = b
        kept, whole = kept + has, whole + of
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / WEIGHTS_FILE_NAME)
    (folder / CONFIG_FILE_NAME).write_text(json.dumps(_config(parts[0][0], stacked, rank), indent=2))
    return kept / whole if whole else 1.0


def check_part(folder: Path, like: Halves) -> None:
    """Raises ``StartError`` for an adapter that can be no part of a sum for a policy with the weights ``like``."""
    halves, config = read_adapter(folder)
    for module, ab in halves.items():
        own = like.get(module)
        if own is None or (ab["A"].shape[1], ab["B"].shape[0]) != (own["A"].shape[1], own["B"].shape[0]):
            raise StartError(f"the adapter {folder} changes {module}, which is no layer that is trained here")
        most = max(float(half.abs().max()) for half in ab.values()) * max(1.0, config.scale_of(module))
        if not most <= MOST_WEIGHT:
            raise StartError(f"the adapter {folder} has a weight of {most:.3g} in {module}")


def _reduced(
    products: Iterable[tuple[torch.Tensor, torch.Tensor]], rank: int
) -> tuple[torch.Tensor, torch.Tensor, tuple[float, float]]:
    """(B, A) of the sum of B · A, and the squared sizes of what they are and of the whole."""
    many_b, many_a = zip(*products, strict=True)
    left, upper = torch.linalg.qr(torch.cat(many_b, 1))
    right, lower = torch.linalg.qr(torch.cat(many_a).T)
    u, s, v = torch.linalg.svd(upper @ lower.T)
    squares = s.double().square()
    room = min(rank, len(s))
    b = torch.zeros(left.shape[0], rank)
    a = torch.zeros(rank, right.shape[0])
    b[:, :room] = left @ (u[:, :room] * s[:room]) / ROW_NORM
    a[:room] = (v[:room] @ right.T) * ROW_NORM
    return b, a, (float(squares[:room].sum()), float(squares.sum()))


def _config(like: Path, modules: Iterable[str], rank: int) -> dict[str, object]:
    """The fields of ``like`` that say what it adapts; one rank and a scale of 1 for all."""
    found = json.loads((like / CONFIG_FILE_NAME).read_text())
    targets = sorted({module.rpartition(".")[2] for module in modules})
    own = {"r": rank, "lora_alpha": rank, "rank_pattern": {}, "alpha_pattern": {}, "use_rslora": False}
    return {**found, **own, "target_modules": targets}
