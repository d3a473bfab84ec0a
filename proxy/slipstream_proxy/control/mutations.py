"""Changes that the control API accepts, on their way into the spool and the store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from slipstream_proxy.control.store_handle import StoreHandle
from slipstream_proxy.control.store_health import PATIENCE
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.records import Kind, Mutation
from slipstream_proxy.spool import SpoolWriter

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

    async def put(self, op: str, data: JsonObject, *, wait: float = 10.0) -> bool | None:
        """None: it could not be made durable (disk full). True: it is in the store already; False: it will be."""
        mutation = Mutation(self.new_id(), op, time.time(), _storable(data))
        ingester = self.stores.ingester
        applied = ingester.expect(mutation.id) if ingester and wait else None
        if not await self.writer.put(Kind.MUTATION, asdict(mutation)):
            if applied:
                applied.cancel()
            return None
        if ingester is None:
            return False
        ingester.wake()
        if applied is None:
            return False
        await self._applied(applied, 0.2 if ingester.stats.broken else wait)
        if not applied.done():
            applied.cancel()
        return not applied.cancelled()

    async def _applied(self, applied: asyncio.Future[None], wait: float) -> None:
        """Until the store has it, or the database turns out to be away."""
        until = time.monotonic() + wait
        while (left := until - time.monotonic()) > 0:
            done, _ = await asyncio.wait({applied}, timeout=min(left, PATIENCE))
            if done or (self._answers is not None and not await self._answers()):
                return

    async def keep(self, op: str, data: JsonObject) -> None:
        """A change of our own that nobody waits for. If the spool cannot be written, it is in memory only."""
        if await self.put(op, data, wait=0) is None:
            log.error("a change (%s) is in memory only: the spool cannot be written", op)
