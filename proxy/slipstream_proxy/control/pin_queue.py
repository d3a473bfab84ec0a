"""New runs' pins, many in one transaction: while one is committed, the next ones gather."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from slipstream_proxy.control.store_handle import StoreHandle
from slipstream_proxy.control.threads import in_thread
from slipstream_proxy.store.values import Pin, PinAsk

MOST = 512
"""Pins in one transaction."""


class _Waiting(NamedTuple):
    ask: PinAsk
    answer: asyncio.Future[Pin]


class PinQueue:
    def __init__(self, stores: StoreHandle) -> None:
        self.stores = stores
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def pin(self, ask: PinAsk) -> Pin:
        """The pin that counts: the one stored, else this one. Raises what the store raises."""
        answer: asyncio.Future[Pin] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(ask, answer))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="pins")
        return await answer

    async def _run(self) -> None:
        while self._waiting:
            some, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            try:
                pins = await in_thread(self.stores.require().pins.pin_many, [w.ask for w in some])
            except Exception as e:
                for w in some:
                    if not w.answer.done():
                        w.answer.set_exception(e)
                continue
            for w, pin in zip(some, pins, strict=True):
                if not w.answer.done():
                    w.answer.set_result(pin)
