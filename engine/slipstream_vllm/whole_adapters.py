"""An adapter is refused if the engine would ignore a part of it.

vLLM compares an adapter's names with the model's by their last part only. Weights for a layer that the model does not
have, or under another prefix, are loaded, kept and never used (vllm-project/vllm#34186, #48019), so that the base
model answers under the adapter's name. Here such an adapter is refused, and the answer names what has no place
(findings/README.md).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from slipstream_vllm.versions import resolve

if TYPE_CHECKING:
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.request import LoRARequest

SHOWN_NAMES = 3
"""Names that a refusal quotes."""


class Manager(Protocol):
    """vLLM's ``LoRAModelManager``, as far as it matters here."""

    modules: Mapping[str, object]
    """Layers that take an adapter, by their full names."""
    packed_modules: Mapping[str, list[str]]
    """A layer that vLLM made of several → what adapters call those."""


def without_place(names: Iterable[str], modules: Collection[str], packed: Mapping[str, Collection[str]]) -> list[str]:
    """Those of an adapter's layers that the model does not have."""
    known = {part for parts in packed.values() for part in parts}.union(modules)
    return sorted(n for n in names if n not in known and n.removesuffix(".base_layer") not in known)


def refusing(original: Callable[..., LoRAModel]) -> Callable[..., LoRAModel]:
    """``WorkerLoRAManager._load_adapter``, which raises ``ValueError`` for an adapter with such layers.

    With pipeline parallelism a worker has a part of the layers only, and cannot tell.
    """

    @functools.wraps(original)
    def load(self: object, lora_request: LoRARequest) -> LoRAModel:
        from vllm.distributed import get_pp_group

        loaded = original(self, lora_request)
        manager: Manager = self._adapter_manager  # type: ignore[attr-defined]
        if get_pp_group().world_size > 1:
            return loaded
        lost = without_place(loaded.loras, manager.modules, manager.packed_modules)
        if lost or not loaded.loras:
            some = ", ".join(lost[:SHOWN_NAMES]) + (", …" if len(lost) > SHOWN_NAMES else "")
            raise ValueError(
                f"the model has no layer for {len(lost)} of the adapter's {len(loaded.loras)} ({some}); its own are "
                f"called like {next(iter(manager.modules), 'none')}"
            )
        return loaded

    load.refuses = True  # type: ignore[attr-defined]
    return load


def install() -> None:
    """Put this in vLLM's place. Raises ``ImportError`` or ``AttributeError`` if this vLLM has no such function."""
    worker = resolve("vllm.lora.worker_manager:WorkerLoRAManager")
    if not getattr(worker._load_adapter, "refuses", False):
        worker._load_adapter = refusing(worker._load_adapter)
