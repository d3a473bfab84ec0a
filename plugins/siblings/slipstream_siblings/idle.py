"""The engine's idle time: requests of ours run while agents leave the engine alone, and give way when one comes."""

from __future__ import annotations

import asyncio
import contextlib
import math
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from slipstream.engines.engine import EngineAway
from slipstream_proxy.control.engines.pool import EnginePool
from slipstream_proxy.control.engines.replica import EngineReplica

Told = Callable[[int], None]
"""Told how many tokens a request gave."""
LOOK_S, SLOW_LOOK_S = 0.05, 0.5
"""Seconds between two looks at the engine's load: while a request of ours runs, and while none does."""
IDLE_AFTER_S = 1.0
"""Seconds without a call of an agent after which the engine is idle."""
CROWD_CALLS = 16
"""Calls of agents beside which one request of ours is not felt: it is a sixteenth of the batch at most."""
BUSY_AGENTS_TIMEOUT_S = 120.0
"""Seconds after which agents who never rest get one request of a replay beside their calls: a version that waits for
its replay keeps the trainer waiting.
"""
AT_ONCE = 32
MAX_STRETCH_FACTOR = 1.25
"""So much longer than alone may one of our requests take beside others of ours. A GPU decodes 32 in the time of one. On
a CPU each makes the engine's step longer, and an agent's call that comes waits for a step.
"""
JUDGED_REQUESTS, RETRY_JUDGEMENTS = 8, 16
"""Requests by which that is judged, and good judgements after which more is tried once more. Each try that fails
doubles the second: an engine that can never do more is seldom asked to.
"""


class IdleTurns:
    """Lets a replay's requests through while agents leave the engine alone, and takes them back when they do not.

    ``load()``: the engine's (running, waiting) requests, with ours. None: it does not say, so one goes at a time.
    ``patience``: seconds without idle time after which one goes at a time beside agents. ``at_once()``: how many of
    ours may run at once at most.
    """

    def __init__(
        self,
        load: Callable[[], Awaitable[tuple[float, float] | None]],
        awake: asyncio.Event,
        patience: float = math.inf,
        at_once: Callable[[], int] = lambda: AT_ONCE,
    ) -> None:
        self._load, self._awake, self._patience, self._at_once = load, awake, patience, at_once
        self._idle_at = time.monotonic()
        self._scopes: dict[asyncio.Timeout, None] = {}
        """Of our requests that run, the oldest first."""
        self._room = 0
        self._changed = asyncio.Condition()
        self._busy_until = time.monotonic() + IDLE_AFTER_S
        self._strikes = 0
        self._most, self._ceiling, self._good, self._again = 1, AT_ONCE, 0, RETRY_JUDGEMENTS
        """How many of ours may run at once, how many at most, good judgements since then, and how many it needs."""
        self._alone = 0.0
        self._paces: list[float] = []
        """Seconds a token of our newest requests."""
        self.taken_back = 0

    def agents_came(self) -> None:
        """A call of an agent is about to come."""
        self._busy_until = time.monotonic() + IDLE_AFTER_S
        self._allow(int(self.starves))

    @property
    def starves(self) -> bool:
        """Agents have left no idle time for so long."""
        return time.monotonic() - self._idle_at > self._patience

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[Told]:
        """To be told how many tokens the request gave, once it was answered."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._scopes) < self._room)
            scope = asyncio.timeout(None)
            self._scopes[scope] = None
        began = time.monotonic()
        try:
            async with scope:
                yield lambda tokens: self._note((time.monotonic() - began) / (tokens + 1))
        finally:
            self._scopes.pop(scope, None)
            async with self._changed:
                self._changed.notify()

    async def watch(self) -> None:
        """Run it beside the replay."""
        while True:
            await self._look()
            async with self._changed:
                self._changed.notify_all()
            await asyncio.sleep(LOOK_S if self._scopes else SLOW_LOOK_S if self._room == 0 else LOOK_S)

    async def _look(self) -> None:
        ours, now = len(self._scopes), time.monotonic()
        try:
            load = await self._load()
        except EngineAway:
            return  # our requests find out themselves
        if not self._awake.is_set():
            self._allow(0)
        elif load is None or (load[1] == 0 and load[0] - ours >= CROWD_CALLS):
            self._allow(1)
        elif sum(load) > ours:
            # one of ours that ended may still be counted: twice in a row it is an agent's
            self._strikes += 1
            if self._strikes > 1 or ours == 0:
                self._busy_until = now + IDLE_AFTER_S
                self._allow(int(self.starves and load[1] == 0))
        elif now >= self._busy_until:
            self._strikes, self._idle_at = 0, now
            self._allow(self._at_once())
        else:
            self._strikes = 0
            self._allow(int(self.starves))

    def _note(self, pace: float) -> None:
        """More at once, as long as that makes none of them much slower."""
        self._paces.append(pace)
        if len(self._paces) < max(JUDGED_REQUESTS, self._most):
            return
        pace, self._paces = statistics.median(self._paces), []
        if self._most == 1:  # one judgement alone may be half of the next
            self._alone += (pace - self._alone) * (0.2 if self._alone else 1.0)
        elif pace > MAX_STRETCH_FACTOR * self._alone:
            self._ceiling, self._good, self._again = self._most // 2, 0, 2 * self._again
        if (good := self._good + 1) >= self._again:
            self._ceiling, self._good = min(2 * self._ceiling, AT_ONCE), 0
        else:
            self._good = good
        self._most = min(2 * self._most, self._ceiling)

    def _allow(self, room: int) -> None:
        self._room = room = min(room, self._most)
        for scope in list(self._scopes)[room:]:
            if not scope.expired() and scope.when() is None:
                scope.reschedule(asyncio.get_running_loop().time())
                self.taken_back += 1


async def load_of(engines: EnginePool, engine: EngineReplica | None) -> tuple[float, float] | None:
    """(Running, waiting) requests of the engine that is asked. None: it does not say."""
    if engine is None:
        return 0.0, 1.0  # nothing is known yet of the one that will be asked
    return await engines.open_requests(engine)


def at_once(engines: EnginePool) -> int:
    """One on a CPU: a step there is as long as what is in it, prompts above all, and an agent's call that comes waits
    for a step. A replay was no slower for it.
    """
    return 1 if any(e.facts.plugin.get("device") == "cpu" for e in engines.engines) else AT_ONCE
