"""Adapters are copied into the engine's slots while it goes on.

vLLM copies an adapter's matrices into one of ``max_loras`` slots between two steps of the engine: hundreds of small
copies for a model of 7 billion parameters. Here a slot that is free is set aside, another thread copies on a stream of
its own, and between two steps the slot only gets its adapter's number.

A slot that is set aside is marked with the adapter's negative number, so vLLM does not take it. It is given back when
vLLM finds no other one.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.model_manager import LoRAModelManager


class OneSlot:
    """The models' manager, as ``activate_adapter`` sees it: one adapter is there, and one slot is free."""

    def __init__(self, models: LoRAModelManager, adapter: LoRAModel, index: int) -> None:
        self._models = models
        self._registered_adapters = {adapter.id: adapter}
        self._active_adapters: dict[int, None] = {}
        self.lora_index_to_id: list[int | None] = [0] * index + [None]

    def __getattr__(self, name: str) -> object:
        return getattr(self._models, name)


class Slot:
    """A slot that is set aside for one adapter. Made in the engine core's thread and filled in another one."""

    def __init__(self, models: LoRAModelManager, number: int, index: int) -> None:
        self.index, self.number = index, number
        self.adapter: LoRAModel | None = None
        """The adapter, once all of it is there."""
        self.ended = threading.Event()
        """Nothing is copied any more, whether it went well or not."""
        self._models = models
        self._before: torch.cuda.Event | None = None
        if models.device is not None and models.device.type == "cuda":
            self._before = torch.cuda.Event()
            self._before.record()  # steps that were begun may still read what the slot had
        models.lora_index_to_id[index] = -number

    def fill(self, adapter: LoRAModel, activate: Callable[..., bool]) -> None:
        """Copy the adapter with vLLM's own ``activate_adapter``. All of it is there when this returns."""
        with torch.inference_mode(), self._stream():
            activate(OneSlot(self._models, adapter, self.index), adapter.id)
        self.adapter = adapter

    def give_back(self) -> None:
        """Leave the slot to vLLM, unless it is the adapter's by now."""
        if self._models.lora_index_to_id[self.index] == -self.number:
            self._models.lora_index_to_id[self.index] = None

    @contextlib.contextmanager
    def _stream(self) -> Iterator[None]:
        if self._before is None:
            yield
            return
        stream = torch.cuda.Stream(self._models.device)
        stream.wait_event(self._before)
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()


class ReservedSlots:
    """The slots that are set aside, by the adapter's number."""

    def __init__(self, activate: Callable[..., bool]) -> None:
        self.activate = activate
        """vLLM's own ``LoRAModelManager.activate_adapter``."""
        self._aside: dict[int, Slot] = {}

    def reserve(self, models: LoRAModelManager, number: int) -> Slot | None:
        """Set a slot aside. None: none is free. Called in the engine core's thread."""
        self.release(number)
        try:
            index = models.lora_index_to_id.index(None)
        except ValueError:
            return None
        self._aside[number] = slot = Slot(models, number, index)
        return slot

    def claim(self, models: LoRAModelManager, number: int) -> bool:
        """→ whether the adapter is in the slot that was set aside for it. From now on the slot is its own."""
        slot = self._aside.pop(number, None)
        if slot is None:
            return False
        slot.ended.wait()
        if slot.adapter is None or slot.adapter is not models.get_adapter(number):
            slot.give_back()
            return False
        if models.lora_index_to_id[slot.index] != -number:  # all adapters were removed meanwhile
            return False
        models.lora_index_to_id[slot.index] = number
        models._active_adapters[number] = None
        return True

    def release(self, number: int) -> None:
        """Give a slot back that nobody claimed."""
        slot = self._aside.pop(number, None)
        if slot is not None:
            slot.ended.wait()
            slot.give_back()

    def make_room(self, models: LoRAModelManager) -> None:
        """Give back what is set aside if no other slot is free: vLLM is about to take one."""
        if None not in models.lora_index_to_id:
            for number in list(self._aside):
                self.release(number)


def claiming(slots: ReservedSlots) -> Callable[..., bool]:
    """In place of ``LoRAModelManager.activate_adapter``: an adapter that is in its slot is not copied again."""

    @functools.wraps(slots.activate)
    def activate(self: LoRAModelManager, lora_id: int) -> bool:
        if lora_id not in self._active_adapters:
            if slots.claim(self, lora_id):
                return True
            slots.make_room(self)
        return slots.activate(self, lora_id)

    return activate
