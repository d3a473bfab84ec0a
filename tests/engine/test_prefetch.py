"""An adapter that is read ahead: by vLLM's own code, in another thread, once, and it is the adapter that vLLM would read."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from tests.support.adapters import make_adapter
from vllm.lora.lora_model import LoRAModel
from vllm.lora.model_manager import LoRAModelManager
from vllm.lora.request import LoRARequest
from vllm.lora.worker_manager import WorkerLoRAManager

from slipstream_vllm import prefetch
from slipstream_vllm.prefetch import (
    MAX_KEPT_ADAPTERS,
    PREFETCH_METHOD,
    Prefetch,
    asking_first,
    manager_of,
    merging_once,
    prefetching,
    taking,
)

MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PACKED = {"model.layers.0.self_attn.qkv_proj": [f"model.layers.0.self_attn.{n}_proj" for n in "qkv"]}


class Models(LoRAModelManager):
    """vLLM's own joining, for a model of one attention layer. What it has for other kinds of models is off."""

    def __init__(self) -> None:
        self.packed_modules, self.modules, self.model = PACKED, {}, SimpleNamespace()
        self.supported_lora_modules, self.packed_modules_mapping = MODULES, {}

    def __getattr__(self, name: str) -> Any:
        return None


class Manager(WorkerLoRAManager):
    """vLLM's own reading, without an engine."""

    def __init__(self) -> None:
        self.read_in: list[str] = []
        self.there: set[int] = set()
        self.max_position_embeddings, self.vocab_size, self._lora_model_cls = 4096, 1000, LoRAModel
        self.lora_config = SimpleNamespace(lora_dtype=torch.float32, max_lora_rank=64)
        self._adapter_manager = Models()

    def list_adapters(self) -> set[int]:
        return self.there

    def _load_adapter(self, lora_request: LoRARequest) -> Any:
        self.read_in.append(threading.current_thread().name)
        return super()._load_adapter(lora_request)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tmp_path_factory.mktemp("prefetch") / "m@1", 1)


def request(path: Path, number: int = 1, **more: Any) -> LoRARequest:
    return LoRARequest(lora_name=f"m@{number}", lora_int_id=number, lora_path=str(path), **more)


def core(manager: object) -> Any:
    """An engine core with one worker in its process."""
    runner = SimpleNamespace(lora_manager=manager) if manager else SimpleNamespace()
    worker = SimpleNamespace(worker=SimpleNamespace(model_runner=runner))
    return SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))


def test_it_is_the_adapter_that_vllm_reads(adapter: Path) -> None:
    manager, ahead = Manager(), Prefetch()
    assert ahead.begin(manager, request(adapter)).result(60)
    found = ahead.take(request(adapter))
    assert found is not None
    theirs = manager._load_adapter(request(adapter))
    manager._adapter_manager._create_merged_loras_inplace(theirs)
    assert found.loras.keys() == theirs.loras.keys()
    assert "model.layers.0.self_attn.qkv_proj" in found.loras
    for name, mine in found.loras.items():
        pairs = zip(flat(mine), flat(theirs.loras[name]), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), name
    assert manager.read_in[0].startswith("slipstream-prefetch")


def flat(layer: Any) -> list[torch.Tensor]:
    parts = [*layer.lora_a, *layer.lora_b] if isinstance(layer.lora_a, list) else [layer.lora_a, layer.lora_b]
    return [p for p in parts if p is not None]


def test_what_was_read_is_not_read_or_joined_again(adapter: Path) -> None:
    ahead, calls = Prefetch(), []
    manager = Manager()
    load = taking(lambda self, lora_request: calls.append("read") or "theirs", ahead)
    merge = merging_once(lambda self, lora_model: calls.append("joined"))
    ahead.begin(manager, request(adapter)).result(60)
    lora = load(manager, request(adapter))
    merge(manager._adapter_manager, lora)
    assert calls == []
    assert load(manager, request(adapter)) == "theirs"  # it is given once
    merge(manager._adapter_manager, SimpleNamespace())
    assert calls == ["read", "joined"]


def test_another_path_under_the_same_number_is_read(adapter: Path, tmp_path: Path) -> None:
    ahead = Prefetch()
    ahead.begin(Manager(), request(adapter)).result(60)
    assert ahead.take(request(tmp_path)) is None


def test_an_adapter_that_cannot_be_read_is_left_to_vllm(tmp_path: Path) -> None:
    ahead = Prefetch()
    assert ahead.begin(Manager(), request(tmp_path / "nowhere")).result(60) is False
    assert ahead.take(request(tmp_path / "nowhere")) is None


def test_adapters_that_nobody_takes_do_not_pile_up(adapter: Path) -> None:
    manager, ahead = Manager(), Prefetch()
    for number in range(1, MAX_KEPT_ADAPTERS + 3):
        assert ahead.begin(manager, request(adapter, number)).result(60)
    kept = [n for n in range(1, MAX_KEPT_ADAPTERS + 3) if ahead.take(request(adapter, n)) is not None]
    assert kept == list(range(3, MAX_KEPT_ADAPTERS + 3))


def test_the_engine_core_answers_later_and_reads_only_what_is_new(adapter: Path) -> None:
    manager = Manager()
    read = prefetching(Prefetch())
    answer = read(core(manager), request(adapter))
    assert isinstance(answer, Future)
    assert answer.result(60) is True
    assert read(core(manager), request(adapter, load_inplace=True)) is False
    manager.there = {1}
    assert read(core(manager), request(adapter)) is False
    assert signature(read).parameters["lora_request"].annotation is LoRARequest


@pytest.mark.parametrize(
    "of",
    [core(None), SimpleNamespace(model_executor=SimpleNamespace()), SimpleNamespace(model_executor=SimpleNamespace(driver_worker=None))],
)  # fmt: skip
def test_workers_elsewhere_read_by_themselves(of: Any, adapter: Path) -> None:
    assert manager_of(of) is None
    assert prefetching(Prefetch())(of, request(adapter)) is False


@pytest.mark.parametrize("trouble", [None, RuntimeError("no such method"), ConnectionError("gone")])
def test_the_api_server_asks_first_and_adds_in_any_case(trouble: Exception | None, adapter: Path) -> None:
    asked: list[Any] = []

    class EngineCore:
        async def call_utility_async(self, method: str, *args: Any) -> bool:
            asked.append((method, args[0].lora_name))
            if trouble:
                raise trouble
            return True

    async def add_lora(self: object, lora_request: LoRARequest) -> bool:
        asked.append("add")
        return True

    engine = SimpleNamespace(engine_core=EngineCore())
    assert asyncio.run(asking_first(add_lora)(engine, request(adapter)))  # type: ignore[arg-type]
    assert asked == [(PREFETCH_METHOD, "m@1"), "add"]


def test_it_is_put_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core import EngineCore

    for owner, name in (
        (WorkerLoRAManager, "_load_adapter"), (LoRAModelManager, "_create_merged_loras_inplace"), (AsyncLLM, "add_lora"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(EngineCore, PREFETCH_METHOD, None, raising=False)
    prefetch.install_core()
    prefetch.install_api()
    assert callable(getattr(EngineCore, PREFETCH_METHOD))
    for found in (WorkerLoRAManager._load_adapter, LoRAModelManager._create_merged_loras_inplace, AsyncLLM.add_lora):
        assert hasattr(found, "__wrapped__")
