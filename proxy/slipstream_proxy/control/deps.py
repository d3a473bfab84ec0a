"""What the control plane's handlers need, made once by ``worker.py`` (and by tests)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from slipstream.config import Config
from slipstream_proxy.control.ingest import Ingester
from slipstream_proxy.control.live import Live
from slipstream_proxy.control.mutations import Mutations
from slipstream_proxy.control.problem import Problem
from slipstream_proxy.control.threads import in_thread

if TYPE_CHECKING:
    from slipstream_proxy.control.adapters import Adapters
    from slipstream_proxy.control.hold import Holder
    from slipstream_proxy.control.metrics import ControlMetrics
    from slipstream_proxy.control.swap import Swapper
    from slipstream_proxy.store.protocol import Store

T = TypeVar("T")
AWAY = {"retry-after": "5"}


@dataclass(slots=True)
class Deps:
    config: Config
    mutations: Mutations
    live: Live
    adapters: Adapters
    swapper: Swapper
    metrics: ControlMetrics
    store_or_none: Store | None = None
    """None: it could not be opened, not even anew. Everything that needs it answers 503, and the spool keeps what comes."""
    ingester: Ingester | None = None
    started: float = field(default_factory=time.time)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, after each commit: who waits for new events looks again."""
    last_step: float | None = None
    """When the trainer last said that a batch is trained on."""
    now: Callable[[], float] = time.time

    @property
    def holder(self) -> Holder:
        return self.swapper.holder

    @property
    def store(self) -> Store:
        if self.store_or_none is None:
            raise Problem(
                503, "the store cannot be opened; calls and rewards are kept in the spool until it can", headers=AWAY
            )
        return self.store_or_none

    async def ask(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a store's method in a thread."""
        return await in_thread(call, *args, **kwargs)

    async def mutate(self, op: str, data: dict[str, Any], *, wait: float = 10.0) -> bool:
        """Accept a change durably; returns whether the store has it already. 503 when it cannot be kept (disk full)."""
        applied = await self.mutations.put(op, data, wait=wait)
        if applied is None:
            raise Problem(
                503,
                "this cannot be kept just now: the spool cannot be written",
                fix="free the disk and send it again",
                headers=AWAY,
            )
        return applied

    def tell(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()
