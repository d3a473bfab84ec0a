"""Adapters are read while the engine goes on.

vLLM reads an adapter's file, joins its matrices and pins their memory between two steps of the engine. All streams
wait for it. Here the API server first asks for ``slipstream_prefetch``: a thread of the engine core reads, joins and
pins. ``add_lora`` comes after that. Only the copy into a slot of the engine is left between two steps.

Workers in processes of their own (on a CPU, with tensor parallelism) read as before.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from slipstream_vllm.versions import resolve

if TYPE_CHECKING:
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.request import LoRARequest
    from vllm.lora.worker_manager import WorkerLoRAManager

log = logging.getLogger("vllm.slipstream")
PREFETCH_METHOD = "slipstream_prefetch"
"""Of the engine core, called by an API server."""
MAX_KEPT_ADAPTERS = 2
"""Adapters that were read and that nobody has asked for yet: an API server that dies leaves one behind."""
MERGED_ATTRIBUTE = "slipstream_merged"
"""Attribute of an adapter whose matrices are joined and pinned."""


class CoreClient(Protocol):
    async def call_utility_async(self, method: str, *args: object) -> object: ...


class AsyncEngine(Protocol):
    """vLLM's ``AsyncLLM``, as far as it matters here."""

    engine_core: CoreClient


class Prefetch:
    """The adapters that were read and wait for ``add_lora``. One thread reads, so one adapter at a time."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "slipstream-prefetch")
        self._read: dict[tuple[int, str], LoRAModel] = {}
        """By number and path."""

    def begin(self, manager: WorkerLoRAManager, request: LoRARequest) -> Future[bool]:
        """→ whether the adapter was read. An adapter that cannot be read is left to vLLM, which says why."""
        return self._thread.submit(self._work, manager, request)

    def take(self, request: LoRARequest) -> LoRAModel | None:
        """The adapter, if it was read. It is given once."""
        return self._read.pop((request.lora_int_id, request.lora_path), None)

    def _work(self, manager: WorkerLoRAManager, request: LoRARequest) -> bool:
        began = time.monotonic()
        try:
            lora = manager._load_adapter(request)
            manager._adapter_manager._create_merged_loras_inplace(lora)
        except Exception as e:  # whatever it is, vLLM meets it again and answers with it
            log.debug("%s is not read ahead: %s", request.lora_name, e)
            return False
        setattr(lora, MERGED_ATTRIBUTE, True)
        self._read[request.lora_int_id, request.lora_path] = lora
        while len(self._read) > MAX_KEPT_ADAPTERS:
            self._read.pop(next(iter(self._read)), None)
        log.info("%s was read ahead in %.0f ms", request.lora_name, 1000 * (time.monotonic() - began))
        return True


def manager_of(core: object) -> WorkerLoRAManager | None:
    """The adapters of the worker in the engine core's own process. None: no adapters, or workers in other processes."""
    worker = getattr(getattr(getattr(core, "model_executor", None), "driver_worker", None), "worker", None)
    found: WorkerLoRAManager | None = getattr(getattr(worker, "model_runner", None), "lora_manager", None)
    return found


def prefetching(prefetch: Prefetch) -> Callable[[object, LoRARequest], Future[bool] | bool]:
    """A method for the engine core. Its answer follows when the adapter was read; the engine goes on meanwhile."""
    from vllm.lora.request import LoRARequest

    def read(self: object, lora_request: LoRARequest) -> Future[bool] | bool:
        manager = manager_of(self)
        if manager is None or lora_request.load_inplace or lora_request.lora_int_id in manager.list_adapters():
            return False
        return prefetch.begin(manager, lora_request)

    read.__annotations__["lora_request"] = LoRARequest  # vLLM converts what came by the type itself, not by its name
    return read


def taking(original: Callable[..., LoRAModel], prefetch: Prefetch) -> Callable[..., LoRAModel]:
    """``WorkerLoRAManager._load_adapter``: an adapter that was read is not read again."""

    @functools.wraps(original)
    def load(self: WorkerLoRAManager, lora_request: LoRARequest) -> LoRAModel:
        there = prefetch.take(lora_request)
        return original(self, lora_request) if there is None else there

    return load


def merging_once(original: Callable[..., None]) -> Callable[..., None]:
    """``LoRAModelManager._create_merged_loras_inplace``: nothing, where that was done."""

    @functools.wraps(original)
    def merge(self: object, lora_model: LoRAModel) -> None:
        if not getattr(lora_model, MERGED_ATTRIBUTE, False):
            original(self, lora_model)

    return merge


def asking_first(original: Callable[..., Awaitable[bool]]) -> Callable[..., Awaitable[bool]]:
    """``AsyncLLM.add_lora``: the engine core reads the adapter before it must add it."""

    @functools.wraps(original)
    async def add_lora(self: AsyncEngine, lora_request: LoRARequest) -> bool:
        try:
            await self.engine_core.call_utility_async(PREFETCH_METHOD, lora_request)
        except Exception as e:  # an engine core that is gone, or has no plugin: the next line says so, or works
            log.debug("%s is not read ahead: %s", lora_request.lora_name, e)
        return await original(self, lora_request)

    return add_lora


def install_core() -> None:
    """Put these in vLLM's place, in the engine core. ``versions.unsupported("prefetch")`` was asked before."""
    prefetch = Prefetch()
    setattr(resolve("vllm.v1.engine.core:EngineCore"), PREFETCH_METHOD, prefetching(prefetch))
    worker = resolve("vllm.lora.worker_manager:WorkerLoRAManager")
    worker._load_adapter = taking(worker._load_adapter, prefetch)
    models = resolve("vllm.lora.model_manager:LoRAModelManager")
    models._create_merged_loras_inplace = merging_once(models._create_merged_loras_inplace)


def install_api() -> None:
    """Put this in vLLM's place, in an API server."""
    engine = resolve("vllm.v1.engine.async_llm:AsyncLLM")
    engine.add_lora = asking_first(engine.add_lora)
