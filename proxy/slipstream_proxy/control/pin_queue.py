"""New runs' pins, many in one transaction: while one is committed, the next ones gather."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from slipstream_proxy.control.store_handle import StoreHandle
from slipstream_proxy.control.threads import in_thread
from slipstream_proxy.store.values import Pin, PinAsk

MOST = 512
"""Pins of one transaction, unless one worker asks for more: so many are found by an index."""


class _Waiting(NamedTuple):
    asks: Sequence[PinAsk]
    answer: asyncio.Future[list[Pin]]


class PinQueue:
    def __init__(self, stores: StoreHandle) -> None:
        self.stores = stores
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def pin(self, asks: Sequence[PinAsk]) -> list[Pin]:
        """The pins that count, in this order: the one stored, else the one asked for. Raises what the store raises."""
        answer: asyncio.Future[list[Pin]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(asks, answer))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="pins")
        return await answer

    def _next(self) -> list[_Waiting]:
        count, size = 1, len(self._waiting[0].asks)
        while count < len(self._waiting) and size + len(self._waiting[count].asks) <= MOST:
            size += len(self._waiting[count].asks)
            count += 1
        some, self._waiting = self._waiting[:count], self._waiting[count:]
        return some

    async def _run(self) -> None:
        while self._waiting:
            some = self._next()
            try:
                pins = await in_thread(self.stores.require().pins.pin_many, [ask for w in some for ask in w.asks])
            except Exception as e:
                for w in some:
                    if not w.answer.done():
                        w.answer.set_exception(e)
                continue
            for w in some:
                mine, pins = pins[: len(w.asks)], pins[len(w.asks) :]
                if not w.answer.done():
                    w.answer.set_result(mine)
