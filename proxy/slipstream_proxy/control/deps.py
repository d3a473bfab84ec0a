"""What the control plane's handlers need. ``assembly.py`` makes it once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from slipstream_proxy.control.activity import SidecarActivity
from slipstream_proxy.control.audit import AuditTrail
from slipstream_proxy.control.endless import EndlessReplies
from slipstream_proxy.control.feed import Feed
from slipstream_proxy.control.problem import Problem
from slipstream_proxy.control.store_handle import RETRY, StoreHandle
from slipstream_proxy.control.store_health import PATIENCE, StoreHealth
from slipstream_proxy.control.threads import in_thread
from slipstream_proxy.control.training_switch import TrainingSwitch
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.store.driver import is_store_fault

if TYPE_CHECKING:
    from slipstream.config import Config
    from slipstream_proxy.control.adapters.fleet import Fleet
    from slipstream_proxy.control.adapters.gatekeeper import Gatekeeper
    from slipstream_proxy.control.adapters.journal import AdapterJournal
    from slipstream_proxy.control.adapters.lifecycle import AdapterLifecycle
    from slipstream_proxy.control.adapters.publisher import LivePublisher
    from slipstream_proxy.control.adapters.registrar import AdapterRegistrar
    from slipstream_proxy.control.adapters.registry import AdapterRegistry
    from slipstream_proxy.control.adapters.swapper import Swapper
    from slipstream_proxy.control.adapters.trials import GateTrials
    from slipstream_proxy.control.engine_lease import EngineLease
    from slipstream_proxy.control.engines import EnginePool
    from slipstream_proxy.control.forgetter import Forgetter
    from slipstream_proxy.control.ingest import Ingester
    from slipstream_proxy.control.judge_board import JudgeBoard
    from slipstream_proxy.control.live import LiveState
    from slipstream_proxy.control.metrics import ControlMetrics
    from slipstream_proxy.control.mutations import Mutations
    from slipstream_proxy.control.pin_queue import PinQueue
    from slipstream_proxy.control.token_text import TokenTexter
    from slipstream_proxy.store.sqlstore import Store

T = TypeVar("T")


def away() -> Problem:
    text = "the store does not answer; calls and rewards are kept in the spool meanwhile"
    return Problem(503, text, fix="ask again; if it lasts, see the proxy's log and the database", headers=RETRY)


def unwritable() -> Problem:
    text = "this cannot be kept now: the spool cannot be written"
    return Problem(503, text, fix="free the disk and send it again", headers=RETRY)


def ignore(task: asyncio.Future[Any]) -> None:
    """As a task's last callback: nobody waits for what it comes to."""
    if not task.cancelled():
        task.exception()


@dataclass(slots=True)
class Deps:
    config: Config
    stores: StoreHandle
    mutations: Mutations
    live: LiveState
    registry: AdapterRegistry
    journal: AdapterJournal
    lifecycle: AdapterLifecycle
    registrar: AdapterRegistrar
    fleet: Fleet
    trials: GateTrials
    gatekeeper: Gatekeeper
    engines: EnginePool
    lease: EngineLease
    publisher: LivePublisher
    swapper: Swapper
    metrics: ControlMetrics
    health: StoreHealth
    judges: JudgeBoard
    texter: TokenTexter
    forgetter: Forgetter
    pins: PinQueue
    audit: AuditTrail = field(init=False)
    switch: TrainingSwitch = field(default_factory=TrainingSwitch)
    feed: Feed = field(default_factory=Feed)
    endless: EndlessReplies = field(default_factory=EndlessReplies)
    activity: SidecarActivity = field(default_factory=SidecarActivity)
    started: float = field(default_factory=time.time)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, after each commit: whoever waits for new events looks again."""
    last_step: float | None = None
    """When the trainer last acknowledged a batch as trained."""
    now: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self.audit = AuditTrail(self)

    @property
    def store(self) -> Store:
        """Raises ``Problem`` 503 while it cannot be opened."""
        return self.stores.require()

    @property
    def store_answers(self) -> bool:
        return self.stores.current is not None and self.health.up

    @property
    def ingester(self) -> Ingester | None:
        return self.stores.ingester

    async def ask(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a store's method in a thread. Raises ``Problem`` 503 within a second if the database is away."""
        return await self.wait_for(in_thread(call, *args, **kwargs))

    async def wait_for(self, asked: Coroutine[None, None, T]) -> T:
        """What the store answers. Raises ``Problem`` 503 within a second if the database is away."""
        if not self.health.up:
            asked.close()
            raise away()
        running = asyncio.ensure_future(asked)
        while not (await asyncio.wait({running}, timeout=PATIENCE))[0]:
            if not await self.health.check():
                running.add_done_callback(ignore)  # its thread ends with the driver's own time-out
                raise away()
        try:
            return running.result()
        except Exception as e:
            if is_store_fault(e):
                raise away() from e
            raise

    async def mutate(self, op: str, data: JsonObject, *, wait: float = 10.0) -> bool:
        """Accept a change durably. → Whether the store has it already. 503 if it cannot be kept (disk full)."""
        applied = await self.mutations.put(op, data, wait=wait)
        if applied is None:
            raise unwritable()
        return applied

    def notify(self) -> None:
        """Wake whoever waits for ``changed``."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()
