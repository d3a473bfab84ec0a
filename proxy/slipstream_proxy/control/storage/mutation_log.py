"""Changes that the control API accepts, on their way into the spool and the store.

What many ask for at once, such as new runs' pins, is one question or transaction: while one runs, the next ones gather.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any, Generic, NamedTuple, TypeVar

from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.control.storage.store_handle import STORE_WAIT_S, StoreHandle
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.log.records import Kind, Mutation
from slipstream_proxy.log.spool import SpoolWriter

log = logging.getLogger(__name__)


def _storable(value: Any) -> Any:
    """Integers beyond 64 bits as floats: the spool's JSON has no others."""
    if isinstance(value, dict):
        return {k: _storable(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_storable(v) for v in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(value) if value.bit_length() < 1000 else str(value)
    return value


MOST_BEHIND = 128
"""Changes that the store may be behind before their senders wait for it."""
LONGEST_READ = 5.0
"""Seconds that who reads waits for them."""


class Mutations:
    """Changes that the control API accepts: durable first (spool), then in the store, in the order they came."""

    def __init__(
        self,
        writer: SpoolWriter,
        stores: StoreHandle,
        new_id: Callable[[], str],
        answers: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """``answers`` asks whether the store's database is there; None: it is a file."""
        self.writer = writer
        self.stores = stores
        self.new_id = new_id
        self._answers = answers
        self.refused = 0
        """Changes that could not be made durable, whose senders were told so; the last one at ``refused_at``."""
        self.refused_at = 0.0
        self._behind: set[asyncio.Future[None]] = set()
        """Changes whose senders did not wait for the store."""

    async def put(
        self, op: str, data: JsonObject, *, wait: float = 10.0, id: str | None = None, soon: bool = False
    ) -> bool | None:
        """None: it could not be made durable (disk full). True: it is in the store already; False: it will be.

        ``id``: the write's identity, if its sender gave one. Of several records with one identity the store takes one.
        ``soon``: while the store keeps up, whoever reads waits for it (``settled``) in place of the sender.
        """
        mutation = Mutation(id or self.new_id(), op, time.time(), _storable(data))
        ingester = self.stores.ingester
        applied = ingester.expect(mutation.id) if ingester and wait else None
        if not await self.writer.put(Kind.MUTATION, asdict(mutation)):
            if applied:
                applied.cancel()
            return None
        if ingester is None or applied is None:
            return False
        alone = not ingester.store.shared  # nobody reads it through another proxy
        if soon and alone and not ingester.stats.broken and len(self._behind) < MOST_BEHIND:
            self._behind.add(applied)
            applied.add_done_callback(self._behind.discard)
            return False
        await self._applied({applied}, 0.2 if ingester.stats.broken else wait)
        return not applied.cancelled()

    async def settled(self) -> bool:
        """Wait until the store has what nobody waited for. → Whether there was any."""
        if (ingester := self.stores.ingester) is not None:
            ingester.hurry()
        if not (behind := {one for one in self._behind if not one.done()}):
            return False
        await self._applied(behind, LONGEST_READ)
        return True

    async def _applied(self, applied: set[asyncio.Future[None]], wait: float) -> None:
        """Until the store has them, or the database turns out to be away. What it has not by then is given up."""
        until = time.monotonic() + wait
        waiting = applied
        if self.stores.ingester is not None:
            self.stores.ingester.hurry()
        while waiting and (left := until - time.monotonic()) > 0:
            _, waiting = await asyncio.wait(waiting, timeout=min(left, STORE_WAIT_S))
            if waiting and self._answers is not None and not await self._answers():
                break
        for late in waiting:
            late.cancel()

    async def keep(self, op: str, data: JsonObject) -> None:
        """A change of our own that nobody waits for. If the spool cannot be written, it is in memory only."""
        if await self.put(op, data, wait=0) is None:
            log.error("a change (%s) is in memory only: the spool cannot be written", op)


MAX_QUESTIONS_TOGETHER = 512
"""Questions that are asked together, unless one sender has more: so many are found by an index."""

A = TypeVar("A")
R = TypeVar("R")


class _Waiting(NamedTuple, Generic[A, R]):
    asks: Sequence[A]
    answer: asyncio.Future[list[R]]


class Together(Generic[A, R]):
    """Many senders' questions to the store as one: while some are answered, the next ones gather."""

    def __init__(self, answer: Callable[[Sequence[A]], list[R]]) -> None:
        """``answer`` runs in a thread: an answer for each, in this order."""
        self.answer = answer
        self._waiting: list[_Waiting[A, R]] = []
        self._task: asyncio.Task[None] | None = None

    async def ask(self, asks: Sequence[A]) -> list[R]:
        """The answers, in this order. Raises what the store raises."""
        answer: asyncio.Future[list[R]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(asks, answer))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="questions")
        return await answer

    def _next(self) -> list[_Waiting[A, R]]:
        count, size = 1, len(self._waiting[0].asks)
        while count < len(self._waiting) and size + len(self._waiting[count].asks) <= MAX_QUESTIONS_TOGETHER:
            size += len(self._waiting[count].asks)
            count += 1
        some, self._waiting = self._waiting[:count], self._waiting[count:]
        return some

    async def _run(self) -> None:
        while self._waiting:
            some = self._next()
            try:
                found = await in_thread(self.answer, [ask for w in some for ask in w.asks])
            except Exception as e:
                for w in some:
                    if not w.answer.done():
                        w.answer.set_exception(e)
                continue
            for w in some:
                mine, found = found[: len(w.asks)], found[len(w.asks) :]
                if not w.answer.done():
                    w.answer.set_result(mine)
