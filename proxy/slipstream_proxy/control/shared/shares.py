"""What one API key may ask of the control plane at once, so that it cannot starve the others.

Admins, dashboards, judges and trainers wait in no line: their keys are the operator's. Rewards go before reads.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import READS_POOL, SEARCHES_POOL, Pool, in_pool


@dataclass(frozen=True, slots=True)
class WaitingLine:
    """``running`` requests of one key at once; of more, ``waiting`` stand in line for ``patience_s`` seconds."""

    what: str
    running: int
    waiting: int
    patience_s: float
    pool: Pool | None = None
    """Whose threads ask the store; None: those that nothing less urgent uses."""
    rests: float = 0.0
    """A place is empty after each request for so many times as long as that took."""


CHANGES_LINE: Final = WaitingLine("changes", 32, 1024, 30.0)
READS_LINE: Final = WaitingLine("reads", 4, 64, 10.0, READS_POOL)
SEARCHES_LINE: Final = WaitingLine("searches", 1, 8, 10.0, SEARCHES_POOL, rests=3.0)
LONGEST_REST_S: Final = 5.0
STREAMS_OF_KEY: Final = 4
REFUSAL_PAUSE_S, PAUSING_REFUSALS = 0.5, 256
"""Seconds after which a key is told that it asks too much, since it would ask again at once. And how many of its
requests wait so: more are told at once, for each holds a connection.
"""


class KeyShares:
    """The lines of all keys."""

    def __init__(self) -> None:
        self._running: Counter[tuple[str, str]] = Counter()
        self._waiting: dict[tuple[str, str], deque[asyncio.Future[None]]] = {}
        self._streams: Counter[str] = Counter()
        self._pausing: Counter[str] = Counter()
        self.refused = 0

    @asynccontextmanager
    async def turn(self, key: str, line: WaitingLine) -> AsyncIterator[None]:
        """Raises ``Problem`` 429: too many of this key's wait already, or this one has waited too long."""
        mine = (key, line.what)
        if self._running[mine] >= line.running:
            await self._wait(mine, line)
        else:
            self._running[mine] += 1
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            with in_pool(line.pool):
                yield
        finally:
            if line.rests:
                loop.call_later(min(line.rests * (loop.time() - began), LONGEST_REST_S), self._go_on, mine)
            else:
                self._go_on(mine)

    async def _wait(self, mine: tuple[str, str], line: WaitingLine) -> None:
        waiting = self._waiting.setdefault(mine, deque())
        if len(waiting) >= line.waiting:
            await self._pause(mine[0])
            raise self._full(line)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            async with asyncio.timeout(line.patience_s):
                await turn
        except BaseException as e:
            if turn in waiting:
                waiting.remove(turn)
            elif turn.done() and not turn.cancelled():  # its turn came in the same moment: the next one's then
                self._go_on(mine)
            if isinstance(e, TimeoutError):
                raise self._full(line) from e
            raise

    def _go_on(self, mine: tuple[str, str]) -> None:
        """The place goes to the next in line."""
        waiting = self._waiting.get(mine)
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._waiting.pop(mine, None)
        self._running[mine] -= 1
        if not self._running[mine]:
            del self._running[mine]

    async def _pause(self, key: str) -> None:
        """Before a refusal."""
        if self._pausing[key] >= PAUSING_REFUSALS:
            return
        self._pausing[key] += 1
        try:
            await asyncio.sleep(REFUSAL_PAUSE_S)
        finally:
            self._pausing[key] -= 1
            if not self._pausing[key]:
                del self._pausing[key]

    @asynccontextmanager
    async def stream(self, key: str) -> AsyncIterator[None]:
        """An endless reply. Raises ``Problem`` 429 beyond the key's share."""
        if self._streams[key] >= STREAMS_OF_KEY:
            await self._pause(key)
            self.refused += 1
            why = f"this key follows the events {STREAMS_OF_KEY} times already"
            raise Problem(429, why, fix="close one, or poll", headers={"retry-after": "30"})
        self._streams[key] += 1
        try:
            yield
        finally:
            self._streams[key] -= 1
            if not self._streams[key]:
                del self._streams[key]

    def _full(self, line: WaitingLine) -> Problem:
        self.refused += 1
        why = f"{line.running} {line.what} of this key run already, and as many wait as may"
        return Problem(429, why, fix="ask again in a second, and fewer at once", headers={"retry-after": "1"})
