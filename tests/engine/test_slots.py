"""A slot that is filled ahead holds what vLLM itself would have put there, and vLLM never takes or loses one through it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.lora.lora_weights import LoRALayerWeights
from vllm.lora.model_manager import AdapterLRUCache, LoRAModelManager, LRUCacheLoRAModelManager

from slipstream_vllm.slots import ReservedSlots, Slot, claiming

SLOTS, LAYERS = 3, 4
ORIGINAL = LoRAModelManager.activate_adapter


class Layer:
    """One layer's slots, written as vLLM's linear layers write theirs."""

    def __init__(self) -> None:
        self.a, self.b = torch.zeros(SLOTS, 4, 8), torch.zeros(SLOTS, 8, 4)
        self.threads: list[str] = []

    def reset_lora(self, index: int) -> None:
        self.a[index], self.b[index] = 0, 0

    def set_lora(self, index: int, lora_a: torch.Tensor, lora_b: torch.Tensor) -> None:
        self.threads.append(threading.current_thread().name)
        self.reset_lora(index)
        self.a[index].copy_(lora_a)
        self.b[index].copy_(lora_b)


class Models(LRUCacheLoRAModelManager):
    """vLLM's own book-keeping of adapters and slots, for a model of small layers."""

    def __init__(self) -> None:
        self.lora_config: Any = SimpleNamespace(max_loras=SLOTS, max_cpu_loras=4 * SLOTS)
        self._registered_adapters = AdapterLRUCache(4 * SLOTS, self.deactivate_adapter)
        self._active_adapters = AdapterLRUCache(SLOTS, self._deactivate_adapter)
        self.lora_index_to_id: list[int | None] = [None] * SLOTS
        self.modules: Any = {f"layer{i}": Layer() for i in range(LAYERS)}
        self.is_pooling_model, self.device = False, torch.device("cpu")

    def _add_adapter(self, lora: Any) -> None:
        self._registered_adapters[lora.id] = lora

    def contents(self, number: int) -> list[torch.Tensor]:
        """What the kernels read for an adapter."""
        index = self.lora_index_to_id.index(number)
        return [part[index].clone() for layer in self.modules.values() for part in (layer.a, layer.b)]


def adapter(number: int) -> Any:
    """One that changes the first two layers only."""
    made = torch.Generator().manual_seed(number)
    loras = {
        f"layer{i}": LoRALayerWeights(
            f"layer{i}", 4, 4, torch.randn(4, 8, generator=made), torch.randn(8, 4, generator=made)
        )
        for i in range(2)
    }
    return SimpleNamespace(id=number, loras=loras, get_lora=loras.get)


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> ReservedSlots:
    found = ReservedSlots(ORIGINAL)
    monkeypatch.setattr(LoRAModelManager, "activate_adapter", claiming(found))
    return found


def ahead(slots: ReservedSlots, models: Models, lora: Any) -> Slot | None:
    slot = slots.reserve(models, lora.id)
    if slot is not None:
        thread = threading.Thread(target=lambda: (slot.fill(lora, slots.activate), slot.ended.set()), name="ahead")
        thread.start()
        thread.join()
    return slot


def test_it_holds_what_vllm_would_have_put_there(slots: ReservedSlots) -> None:
    mine, theirs = Models(), Models()
    for models in (mine, theirs):
        for layer in models.modules.values():
            layer.a += 7  # of an adapter that was there before
    lora = adapter(5)
    assert ahead(slots, mine, lora) is not None
    for models in (mine, theirs):
        models.add_adapter(lora)
        assert models.activate_adapter(5)
        assert not models.activate_adapter(5)
    assert all(torch.equal(a, b) for a, b in zip(mine.contents(5), theirs.contents(5), strict=True))
    assert mine.modules["layer0"].threads == ["ahead"]  # and nothing was copied again
    assert mine._active_adapters.cache.keys() == theirs._active_adapters.cache.keys()
    assert mine.lora_index_to_id == theirs.lora_index_to_id


def test_vllm_takes_no_slot_that_is_set_aside(slots: ReservedSlots) -> None:
    models = Models()
    slot = ahead(slots, models, adapter(5))
    assert slot is not None
    models.add_adapter(adapter(6))
    models.activate_adapter(6)
    assert models.lora_index_to_id[slot.index] == -5
    assert models.lora_index_to_id.count(6) == 1


def test_a_slot_that_was_set_aside_is_given_back_when_no_other_one_is_free(slots: ReservedSlots) -> None:
    models = Models()
    waiting = slots.reserve(models, 5)
    assert waiting is not None
    threading.Timer(0.1, lambda: (waiting.fill(adapter(5), slots.activate), waiting.ended.set())).start()
    for number in range(6, 6 + SLOTS):
        models.add_adapter(adapter(number))
        models.activate_adapter(number)
    assert sorted(n for n in models.lora_index_to_id if n) == [6, 7, 8]
    assert waiting.adapter is not None  # it was waited for, so nothing writes into the slot afterwards
    models.add_adapter(adapter(5))
    assert models.activate_adapter(5)
    assert 5 in models.lora_index_to_id


def test_no_slot_is_set_aside_when_all_are_in_use(slots: ReservedSlots) -> None:
    models = Models()
    for number in range(1, 1 + SLOTS):
        models.add_adapter(adapter(number))
        models.activate_adapter(number)
    assert slots.reserve(models, 9) is None


@pytest.mark.parametrize("trouble", ["not filled", "another adapter", "all removed"])
def test_what_went_wrong_is_copied_as_before(slots: ReservedSlots, trouble: str) -> None:
    models, lora = Models(), adapter(5)
    if trouble == "not filled":
        slot = slots.reserve(models, 5)
        assert slot is not None
        slot.ended.set()
    else:
        ahead(slots, models, adapter(5))  # another object of the same number
    if trouble == "all removed":
        models.remove_all_adapters()
    models.add_adapter(lora)
    assert models.activate_adapter(5)
    assert models.lora_index_to_id.count(5) == 1
    assert -5 not in models.lora_index_to_id
    plain = Models()
    plain.add_adapter(lora)
    ORIGINAL(plain, 5)
    assert all(torch.equal(a, b) for a, b in zip(models.contents(5), plain.contents(5), strict=True))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["reserve", "fill", "add", "remove", "release"]), st.integers(1, 6)), max_size=40
    )
)
def test_whatever_comes_each_adapter_reads_its_own_weights(steps: list[tuple[str, int]]) -> None:
    slots, models = ReservedSlots(ORIGINAL), Models()
    activate = claiming(slots)
    loras, set_aside = {n: adapter(n) for n in range(1, 7)}, {}
    for what, number in steps:
        if what == "reserve":
            end(set_aside.pop(number, None))
            if number not in models._active_adapters and (slot := slots.reserve(models, number)):
                set_aside[number] = slot
        elif what == "fill":
            slot = set_aside.pop(number, None)
            if slot and models.lora_index_to_id[slot.index] == -number:
                slot.fill(loras[number], ORIGINAL)
            end(slot)
        elif what == "add":
            for slot in set_aside.values():
                end(slot)
            set_aside.clear()
            models.add_adapter(loras[number])
            if number not in models._active_adapters and len(models._active_adapters) >= SLOTS:
                models._active_adapters.remove_oldest()
            activate(models, number)
        elif what == "remove":
            models.remove_adapter(number)
        else:
            end(set_aside.pop(number, None))
            slots.release(number)
        active = set(models._active_adapters.cache)
        assert {n for n in models.lora_index_to_id if n and n > 0} == active
        for n in active:
            weights = loras[n].loras["layer0"]
            assert torch.equal(models.contents(n)[0], weights.lora_a)
            assert torch.equal(models.contents(n)[1], weights.lora_b)


def end(slot: Slot | None) -> None:
    if slot is not None:
        slot.ended.set()
