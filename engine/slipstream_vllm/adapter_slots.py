"""Turns at the slots for adapters, and what was counted there.

vLLM computes with ``--max-loras`` adapters at once. A call of one more waits until a slot is free, and calls of those
that have a slot pass it: where they always come, it waits for ever. Here whoever has had its turn while others wait
begins no more calls until its slot went round. Nothing that runs is interrupted. The owner with the fewest slots comes
first, then the one whose turn ended longest ago. An owner is a tenant: one with many versions at once has no more than
one with one, as soon as both want a slot. While calls run, one adapter a step comes in: they wait for its copy.

With as many slots as adapters that are asked for, vLLM is left as it is.
"""

from __future__ import annotations

import functools
import logging
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from slipstream_vllm.versions import resolve

if TYPE_CHECKING:
    from fastapi import FastAPI
    from vllm.lora.request import LoRARequest

log = logging.getLogger("vllm.slipstream")
USE_PATH = "/slipstream/adapters"
USE_METHOD = "slipstream_adapter_use"
"""Of the engine core, called by an API server."""
TURN_S, LONGEST_TURN_S = 0.5, 4.0
"""Seconds for which an adapter begins calls while others wait: for each call that it has running, and at most. One with
many calls fills a batch that one with a single call leaves empty.
"""
LOADS_A_STEP = 1
MAX_KEPT_ENDS = 4096
"""Adapters of which the end of the last turn is kept."""
USE_KEPT_S = 1.0
"""Seconds for which an API server says the same again: each tenant's control plane asks."""
_OWNER = re.compile(r"@([a-z0-9][a-z0-9-]{0,31})\.[0-9]+$")


def owner_of(name: str) -> str:
    """The tenant in the name that engines know an adapter by (``model@acme.7``). Empty: it is none's."""
    found = _OWNER.search(name)
    return found[1] if found else ""


@dataclass(slots=True)
class OwnerUse:
    """Of one owner since the start. Each load is one call's at least; the other calls found their adapter in a slot."""

    calls: int = 0
    loads: int = 0
    """Copies into a slot."""
    reads: int = 0
    """Loads for which the file was read: the host's memory did not have it."""
    load_seconds: float = 0.0
    waits: int = 0
    """Calls that waited for a slot."""
    wait_seconds: float = 0.0


class UseCounts(dict[str, OwnerUse]):
    """Owner → use."""

    def __missing__(self, owner: str) -> OwnerUse:
        self[owner] = OwnerUse()
        return self[owner]

    def told(self) -> dict[str, dict[str, float]]:
        return {owner: asdict(use) for owner, use in self.items()}


class SlotTurns:
    """``owners``: adapter → owner. Times are monotonic."""

    def __init__(self, slots: int, owners: Mapping[int, str], clock: Callable[[], float] = time.monotonic) -> None:
        self.slots, self.owners, self.clock = slots, owners, clock
        self._began: dict[int, float] = {}
        """Adapter → when its turn began: others wait since then at the latest."""
        self._ended: dict[int | str, float] = {}
        """Adapter, owner → when its last turn ended."""

    def open_to(self, running: Mapping[int, int], waiting: Sequence[int]) -> set[int] | None:
        """Adapters whose calls may begin in this step. None: all. ``running``: those with a slot → their calls.
        ``waiting``: of the calls that wait, in their order.
        """
        coming = [adapter for adapter in dict.fromkeys(waiting) if adapter not in running]
        if len(running) + len(coming) <= self.slots:
            self._began.clear()
            return None
        now = self.clock()
        for adapter in self._began.keys() - running.keys():
            self._end(adapter, now)
        for adapter in running:
            self._began.setdefault(adapter, now)
        held = Counter(self.owners.get(adapter, "") for adapter in running)
        free = self.slots - len(running)
        let_in = self._let_in(coming, held, min(free, LOADS_A_STEP) if running else free)
        spare = free - len(let_in)
        coming = sorted((a for a in coming if a not in let_in), key=lambda a: self._rank(a, held))
        return (running.keys() - self._closed(running, coming[spare : spare + 2 * self.slots], held, now)) | let_in

    def _let_in(self, coming: list[int], held: Counter[str], most: int) -> set[int]:
        found: set[int] = set()
        for _ in range(min(most, len(coming))):
            first = min((a for a in coming if a not in found), key=lambda a: self._rank(a, held))
            found.add(first)
            held[self.owners.get(first, "")] += 1
        return found

    def _rank(self, adapter: int, held: Counter[str]) -> tuple[float, ...]:
        owner = self.owners.get(adapter, "")
        return held[owner], self._ended.get(owner, 0.0), self._ended.get(adapter, 0.0)

    def _closed(self, running: Mapping[int, int], coming: list[int], held: Counter[str], now: float) -> set[int]:
        """Those that begin no more calls, for as many that come: of the same owner, or of one that has more slots."""
        over = [a for a, calls in running.items() if now - self._began[a] >= min(TURN_S * calls, LONGEST_TURN_S)]
        over.sort(key=lambda a: (-held[self.owners.get(a, "")], self._began[a]))
        closed: set[int] = set()
        for newcomer in coming:
            to = self.owners.get(newcomer, "")
            for adapter in over:
                of = self.owners.get(adapter, "")
                if adapter not in closed and (of == to or held[of] > held[to]):
                    closed.add(adapter)
                    held[of] -= 1
                    held[to] += 1
                    break
        return closed

    def _end(self, adapter: int, now: float) -> None:
        del self._began[adapter]
        for key in (adapter, self.owners.get(adapter, "")):
            self._ended.pop(key, None)
            self._ended[key] = now
        while len(self._ended) > MAX_KEPT_ENDS:
            del self._ended[next(iter(self._ended))]


class ScheduledTurns:
    """The turns of one of vLLM's schedulers, and the calls that were counted."""

    def __init__(self, slots: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.owners: dict[int, str] = {}
        self.turns, self.clock, self.use = SlotTurns(slots, self.owners, clock), clock, UseCounts()
        self.since: dict[str, float] = {}
        """Call → when it first waited for a slot."""

    def hold_back(self, scheduler: Any) -> list[Any]:
        """Take out of the queue what may not begin in this step."""
        adapters = [request.lora_request for request in scheduler.waiting if request.lora_request]
        if not adapters:
            return []
        running = Counter(r.lora_request.lora_int_id for r in scheduler.running if r.lora_request)
        self._know([*adapters, *(r.lora_request for r in scheduler.running if r.lora_request)])
        may = self.turns.open_to(running, [adapter.lora_int_id for adapter in adapters])
        if may is None:
            return []
        held = [r for r in scheduler.waiting if r.lora_request and not self._may_begin(r, may, running)]
        scheduler.waiting.remove_requests(held)
        now = self.clock()
        for request in held:
            self.since.setdefault(request.request_id, now)
        return held

    @staticmethod
    def _may_begin(request: Any, may: AbstractSet[int], running: Mapping[int, int]) -> bool:
        """A call that was interrupted goes on with those of its adapter."""
        adapter = request.lora_request.lora_int_id
        return adapter in may or (request.num_preemptions > 0 and adapter in running)

    def _know(self, adapters: list[LoRARequest]) -> None:
        new = {a.lora_int_id: owner_of(a.lora_name) for a in adapters if a.lora_int_id not in self.owners}
        self.owners.update(new)
        while len(self.owners) > MAX_KEPT_ENDS:
            del self.owners[next(iter(self.owners))]

    def put_back(self, scheduler: Any, held: list[Any], before: list[Any]) -> None:
        """``before``: the queue as it was. Its order stays."""
        queue = scheduler.waiting
        if not isinstance(queue, deque):  # it sorts by itself
            for request in held:
                queue.add_request(request)
            return
        left, known = {*queue, *held}, set(before)
        order = [r for r in queue if r not in known] + [r for r in before if r in left]
        queue.clear()
        queue.extend(order)

    def count(self, scheduler: Any, begun: Sequence[Any]) -> None:
        """``begun``: the calls of this step that are new."""
        now = self.clock()
        for call in begun:
            if call.lora_request is None:
                continue
            use = self.use[owner_of(call.lora_request.lora_name)]
            use.calls += 1
            if (since := self.since.pop(call.req_id, None)) is not None:
                use.waits += 1
                use.wait_seconds += now - since
        for gone in [call for call in self.since if call not in scheduler.requests]:
            del self.since[gone]


def by_turns(original: Callable[..., Any]) -> Callable[..., Any]:
    """``Scheduler.schedule``, to which calls that have to wait for their adapter's turn are not there."""

    @functools.wraps(original)
    def schedule(self: Any, *args: object, **named: object) -> Any:
        if self.lora_config is None:
            return original(self, *args, **named)
        turns = turns_of(self)
        # an older scheduler has another queue for what it passed over
        before = list(self.waiting) if self.waiting and not hasattr(self, "skipped_waiting") else []
        held = turns.hold_back(self) if before else []
        try:
            output = original(self, *args, **named)
        finally:
            if held:
                turns.put_back(self, held, before)
        if output.scheduled_new_reqs or turns.since:
            turns.count(self, output.scheduled_new_reqs)
        return output

    return schedule


def turns_of(scheduler: Any) -> ScheduledTurns:
    found: ScheduledTurns | None = getattr(scheduler, "slipstream_turns", None)
    if found is None:
        found = scheduler.slipstream_turns = ScheduledTurns(scheduler.lora_config.max_loras)
    return found


WORKER_USE = UseCounts()
"""What this worker has loaded."""


def counting(original: Callable[..., bool]) -> Callable[..., bool]:
    """``LRUCacheWorkerLoRAManager.add_adapter``, which is called for each adapter of a step."""

    @functools.wraps(original)
    def add_adapter(self: Any, lora_request: LoRARequest) -> bool:
        models, number = self._adapter_manager, lora_request.lora_int_id
        if number in models._active_adapters and not lora_request.load_inplace:
            return original(self, lora_request)
        read, began = number not in models._registered_adapters, time.monotonic()
        added = original(self, lora_request)
        use = WORKER_USE[owner_of(lora_request.lora_name)]
        use.loads += 1
        use.reads += read
        use.load_seconds += time.monotonic() - began
        return added

    add_adapter.counts = True  # type: ignore[attr-defined]
    return add_adapter


def loads_of(_: object) -> dict[str, dict[str, float]]:
    """What the worker counted in its process; called through vLLM's ``collective_rpc``."""
    return WORKER_USE.told()


def adapter_use(self: Any) -> dict[str, dict[str, float]]:
    """A method for the engine core. → Owner → counts, of its scheduler and its first worker."""
    found: dict[str, dict[str, float]] = self.collective_rpc(loads_of)[0]
    for owner, use in turns_of(self.scheduler).use.told().items():
        loads = found.setdefault(owner, {})
        found[owner] = {name: value + loads.get(name, 0) for name, value in use.items()}
    return found


def attach(app: FastAPI) -> None:
    """``GET /slipstream/adapters``: owner → counts. Empty: this engine counts nothing."""
    kept: dict[str, Any] = {"at": float("-inf"), "use": {}}

    async def use() -> dict[str, object]:
        if time.monotonic() - kept["at"] > USE_KEPT_S:
            kept["at"] = time.monotonic()
            try:
                kept["use"] = await app.state.engine_client.engine_core.call_utility_async(USE_METHOD)
            except Exception as e:
                log.debug("the use of adapters is not known: %s", e)
        return {"owners": kept["use"]}

    app.add_api_route(USE_PATH, use, methods=["GET"], include_in_schema=False)


def install_core() -> None:
    """Put these in vLLM's place, in the engine core. ``versions.unsupported("slots")`` was asked before."""
    scheduler = resolve("vllm.v1.core.sched.scheduler:Scheduler")
    scheduler.schedule = by_turns(scheduler.schedule)
    setattr(resolve("vllm.v1.engine.core:EngineCore"), USE_METHOD, adapter_use)


def install_worker() -> None:
    """Raises ``ImportError`` or ``AttributeError`` if this vLLM has no such function."""
    manager = resolve("vllm.lora.worker_manager:LRUCacheWorkerLoRAManager")
    if not getattr(manager.add_adapter, "counts", False):
        manager.add_adapter = counting(manager.add_adapter)
