"""The store as the control plane's handlers ask it: what it knows, and what it shall keep.

A question ends within a second while the database is away. A change is in the log before it is in the store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from slipstream.config import Config
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.control.storage.ingester import Ingester
from slipstream_proxy.control.storage.mutation_log import Mutations
from slipstream_proxy.control.storage.store_handle import RETRY_HEADERS, STORE_WAIT_S, StoreHandle, StoreHealth
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.store.store import Store
from slipstream_proxy.store.tables.driver import is_store_fault

T = TypeVar("T")
Change = tuple[str, JsonObject]
"""The kind of a mutation and its data."""


def away() -> Problem:
    text = "the store does not answer; calls and rewards are kept in the spool meanwhile"
    return Problem(503, text, fix="ask again; if it lasts, see the proxy's log and the database", headers=RETRY_HEADERS)


def unwritable() -> Problem:
    text = "this cannot be kept now: the spool cannot be written"
    return Problem(503, text, fix="free disk space and send it again", headers=RETRY_HEADERS)


def ignore(task: asyncio.Future[Any]) -> None:
    """As a task's last callback: nobody waits for what it comes to."""
    if not task.cancelled():
        task.exception()


ARRIVING_CALLS_TIMEOUT_S = 5.0
"""Seconds that a look at an episode waits for calls that have ended."""


@dataclass(slots=True)
class StoreAccess:
    config: Config
    stores: StoreHandle
    mutations: Mutations
    health: StoreHealth
    now: Callable[[], float] = field(default=time.time, kw_only=True)

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
        while not (await asyncio.wait({running}, timeout=STORE_WAIT_S))[0]:
            if not await self.health.check():
                running.add_done_callback(ignore)  # its thread ends with the driver's own time-out
                raise away()
        try:
            return running.result()
        except Exception as e:
            if is_store_fault(e):
                raise away() from e
            raise

    async def arrived(self) -> None:
        """Wait a moment for what this proxy has recorded and the store has not yet."""
        if (ingester := self.stores.ingester) is not None:
            await ingester.arrived(ARRIVING_CALLS_TIMEOUT_S)

    async def mutate(
        self, op: str, data: JsonObject, *, wait: float = 10.0, id: str | None = None, soon: bool = False
    ) -> bool:
        """Accept a change durably. → Whether the store has it already. 503 if it cannot be kept (disk full).

        ``id``, ``soon``: see ``Mutations.put``.
        """
        applied = await self.mutations.put(op, data, wait=wait, id=id, soon=soon)
        if applied is None:
            if op != "audit":  # that is of a change that is made
                self.mutations.refused += 1
                self.mutations.refused_at = self.now()
            raise unwritable()
        return applied

    async def mutate_all(self, changes: Sequence[Change]) -> bool:
        """Accept these, in this order. The last one's commit is waited for, which comes after the others'. → Whether
        the store has it.
        """
        last = len(changes) - 1
        puts = [self.mutate(op, data, wait=10.0 if n == last else 0) for n, (op, data) in enumerate(changes)]
        done = await asyncio.gather(*puts)
        return not done or done[-1]
