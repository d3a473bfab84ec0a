"""The weights that are trained, their optimiser's state, and copies of both: the way back from a step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch

_TRAINED: WeakKeyDictionary[torch.nn.Module, list[tuple[str, torch.nn.Parameter]]] = WeakKeyDictionary()
"""A walk over a model's modules takes milliseconds, and a step makes a dozen of them."""


def trained_of(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """The trainable weights by name. Which these are does not change once a policy is loaded."""
    if (found := _TRAINED.get(model)) is None or not all(p.requires_grad for _, p in found):
        found = _TRAINED[model] = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return found


def changes_of(model: torch.nn.Module) -> tuple[int, ...]:
    """How often each trainable weight was written to. Whatever changes the optimiser's state changes weights too."""
    return tuple(p._version for _, p in trained_of(model))


def copies(tensors: Sequence[torch.Tensor], device: str | torch.device | None = None) -> list[torch.Tensor]:
    """On ``device`` (None: where each is), by few kernels and transfers."""
    made: list[torch.Tensor | None] = [None] * len(tensors)
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, t in enumerate(tensors):
        alike.setdefault((t.device, t.dtype), []).append(i)
    with torch.no_grad():
        for (source, _), places in alike.items():
            group = [tensors[i] for i in places]
            if device is None or source == torch.device(device):
                new = [torch.empty_like(t) for t in group]
                torch._foreach_copy_(new, group)
            else:
                flat = torch.cat([t.reshape(-1) for t in group]).to(device)
                new = [x.view(t.shape) for x, t in zip(flat.split([t.numel() for t in group]), group, strict=True)]
            for i, t in zip(places, new, strict=True):
                made[i] = t
    return [t for t in made if t is not None]


def weights_of(model: torch.nn.Module, device: str | torch.device | None = None) -> dict[str, torch.Tensor]:
    """Copies of the trainable weights by name, on ``device`` (None: where each is)."""
    found = trained_of(model)
    return dict(zip([n for n, _ in found], copies([p for _, p in found], device), strict=True))


@contextlib.contextmanager
def kept_weights(model: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Yields copies of the trainable weights, and puts them back."""
    now = weights_of(model)
    try:
        yield now
    finally:
        put_weights(model, now)


def put_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for n, p in trained_of(model):
            p.copy_(weights[n])


def _tensors(value: object) -> Iterator[torch.Tensor]:
    """Of an optimiser's state."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)


def _copied(state: dict[str, object], device: str | torch.device | None) -> dict[str, object]:
    """An optimiser's state."""
    found = list(_tensors(state))
    memo: dict[int, object] = {id(old): new for old, new in zip(found, copies(found, device), strict=True)}
    return deepcopy(state, memo)


@dataclass(slots=True)
class Snapshot:
    """Trainable weights and optimiser state, as they were."""

    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    optimizer: dict[str, object] = field(default_factory=dict)

    @classmethod
    def take(
        cls, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: str | torch.device | None = None
    ) -> Snapshot:
        """Copies, on ``device`` (None: where each weight is)."""
        return cls(weights_of(model, device), _copied(optimizer.state_dict(), device))

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(t.nbytes for part in (self.weights, self.optimizer) for t in _tensors(part))

    def misfit(self, model: torch.nn.Module) -> str | None:
        """Why these weights are not of ``model``, or None."""
        trained = {n: tuple(p.shape) for n, p in trained_of(model)}
        ours = {n: tuple(w.shape) for n, w in self.weights.items()}
        if trained == ours:
            return None
        name = next(n for n in (*trained, *ours) if trained.get(n) != ours.get(n))
        return f"{name} has shape {ours.get(name)}, the model's has {trained.get(name)}"

    def resize(self, model: torch.nn.Module, factor: float) -> None:
        """Multiply the length of the step since then. The optimiser's state stays."""
        with torch.no_grad():
            for n, p in trained_of(model):
                p.copy_(torch.lerp(self.weights[n].to(p.device), p, factor))

    def restore(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Settings of the optimiser (weight decay) stay those of this process, not those of the snapshot's."""
        settings = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        put_weights(model, self.weights)
        optimizer.load_state_dict(deepcopy(self.optimizer))
        for group, now in zip(optimizer.param_groups, settings, strict=True):
            group.update(now)
