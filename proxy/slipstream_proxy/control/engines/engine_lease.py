"""One GPU for engine and trainer: while the trainer has it, new calls wait at the data plane and the engines sleep.

A hold is a lease: its worker renews it, and without that it ends by itself, the engines wake and the calls go on. It
stands in the live state, so that data planes learn of it as of everything else and a control plane that is started
again goes on with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from slipstream.contract import EngineReleased, Hold, HoldIn
from slipstream.engines.engine import EngineAway, EngineQuestion
from slipstream_proxy.control.engines.live import LiveState
from slipstream_proxy.control.engines.pool import EnginePool
from slipstream_proxy.control.engines.replica import EngineFailed, EngineReplica
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import end

log = logging.getLogger(__name__)
SLEEP_TIMEOUT_S = 10.0
"""Seconds that a request for a hold waits for engines to fall asleep; then its worker asks again."""
RENEWAL_AFTER_RESTART_S = 15.0
"""Seconds that the worker of a hold gets to renew it after the control plane was away."""
WAKE_TRIES = 5
WAKE_PAUSE = 1.0
"""Seconds between tries: a trainer that was killed may not have given all of its memory back yet."""


@dataclass(slots=True)
class HeldLease:
    worker: str
    until: float
    """Seconds since the epoch."""
    began: float = field(default_factory=time.monotonic)
    asleep: asyncio.Task[None] | None = None
    """Puts the engines to sleep."""
    sleep_seconds: float = 0.0
    error: str | None = None
    ending: bool = False

    @property
    def ready(self) -> bool:
        return (self.asleep is None or self.asleep.done()) and self.error is None


async def sleep(engines: EnginePool, engine: EngineReplica) -> bool:
    """False: it has no sleep mode.

    ``engines.awake`` is cleared before. Raises ``EngineFailed`` or ``EngineAway``.
    """
    async with engine.lock:  # a load under way ends first
        return await _done(engines, engine, engine.server.sleep())


async def wake(engines: EnginePool, engine: EngineReplica) -> None:
    """Nothing happens to one that is awake. Raises ``EngineFailed`` or ``EngineAway``."""
    await _done(engines, engine, engine.server.wake())


async def _done(engines: EnginePool, engine: EngineReplica, question: EngineQuestion | None) -> bool:
    """False: it cannot do this."""
    if question is None:
        return False
    status, _, text = await engines.tell(engine, question)
    if status not in (200, 404):
        raise EngineFailed(f"{question.path.partition('?')[0]} answered {status}: {text[:200]}")
    return status == 200


async def asleep(engines: EnginePool, engine: EngineReplica) -> bool:
    """False too where it does not answer, or has no sleep mode."""
    question = engine.server.is_asleep()
    try:
        return question is not None and bool((await engines.tell(engine, question)).object.get("is_sleeping"))
    except EngineAway:
        return False


class EngineLease:
    """``publish`` tells the data planes. Counters are for the metrics."""

    def __init__(self, engines: EnginePool, live: LiveState, publish: Callable[[], None], *, shared: bool) -> None:
        self.engines, self.live, self.publish, self.shared = engines, live, publish, shared
        self.held: HeldLease | None = None
        self.ended: dict[str, int] = {"released": 0, "expired": 0, "failed": 0}
        self.seconds = 0.0
        """That calls could not begin, in all holds that have ended."""
        self._lock = asyncio.Lock()
        self._watching: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Before anything is asked of the engines: they may sleep, because of a hold that goes on."""
        left = self.live.read().get("hold")
        if isinstance(left, dict) and self.shared and float(left.get("until", 0)) > time.time():
            for engine in self.engines.engines:
                engine.ok = engine.healthy = True  # as they were when they fell asleep; nobody can look now
            held = HeldLease(str(left["worker"]), max(float(left["until"]), time.time() + RENEWAL_AFTER_RESTART_S))
            held.asleep = asyncio.create_task(self._sleep(held), name="sleep")  # again: it may have been about to
            self._begin(held)

    async def stop(self) -> None:
        """The hold goes on: whoever starts next finds it in the live state."""
        tasks = list(self._watching)
        if self.held is not None and self.held.asleep is not None:
            tasks.append(self.held.asleep)
        await end(tasks)

    async def hold(self, wanted: HoldIn) -> Hold:
        """Take or renew. Raises ``Problem``: another worker's (409), or the engines cannot sleep (503)."""
        until = time.time() + wanted.seconds
        while self.held is not None and self.held.ending:
            async with self._lock:  # it ends first; what follows is a hold of its own
                pass
        held = self.held
        if held is not None and held.worker != wanted.worker:
            fix = "ask again when it is released"
            raise Problem(409, f"{held.worker} has the engine", field="body.worker", fix=fix)
        if held is None:
            held = HeldLease(wanted.worker, until)
            held.asleep = asyncio.create_task(self._sleep(held), name="sleep")
            self._begin(held)
        else:
            held.until = until
            self._tell()
        if held.asleep is not None:
            await asyncio.wait({held.asleep}, timeout=SLEEP_TIMEOUT_S)
        if held.error is not None:
            raise Problem(503, f"the engine cannot sleep: {held.error}", headers={"retry-after": "5"})
        return Hold(worker=held.worker, until=held.until, ready=held.ready, sleep_seconds=held.sleep_seconds)

    def _begin(self, held: HeldLease) -> None:
        self.held = held
        self.engines.awake.clear()
        self._tell()
        self._watching = [t for t in self._watching if not t.done()]
        self._watching.append(asyncio.create_task(self._watch(held), name="hold"))

    def _tell(self) -> None:
        self.live.hold = None if self.held is None else {"worker": self.held.worker, "until": self.held.until}
        self.publish()

    async def _sleep(self, held: HeldLease) -> None:
        began = time.monotonic()
        found = await asyncio.gather(*(sleep(self.engines, e) for e in self.engines.engines), return_exceptions=True)
        held.sleep_seconds = time.monotonic() - began
        errors = [e for e in found if isinstance(e, BaseException)]
        if errors:
            held.error = str(errors[0])
            log.error("the engine cannot sleep, calls go on: %s", held.error)
            await self._end(held, "failed")
        elif not all(found):
            log.warning("an engine has no sleep mode: calls wait while the trainer steps, its memory stays taken")

    async def _watch(self, held: HeldLease) -> None:
        while self.held is held:
            left = held.until - time.time()
            if left <= 0:
                log.warning("%s has not renewed its hold of the engine: waking it", held.worker)
                if held.asleep is not None:
                    await asyncio.wait({held.asleep})
                await self._end(held, "expired")
                return
            await asyncio.sleep(min(left, 0.5))

    async def release(self, worker: str) -> EngineReleased:
        """Wake the engines, then let the calls go on. Nothing happens when the hold is not this worker's."""
        held = self.held
        if held is None or held.worker != worker:
            return EngineReleased(held=False)
        if held.asleep is not None:
            await asyncio.wait({held.asleep})
        began = time.monotonic()
        ended = await self._end(held, "released")
        return EngineReleased(held=ended, wake_seconds=time.monotonic() - began)

    async def _end(self, held: HeldLease, how: str) -> bool:
        held.ending = True
        async with self._lock:
            if self.held is not held:
                return False
            await self._wake()
            self.held = None
            self._tell()
            self.engines.awake.set()
            self.ended[how] += 1
            self.seconds += time.monotonic() - held.began
            return True

    async def _wake(self) -> None:
        """Every engine, patiently: calls go on afterwards in any case, and health checks find what is dead."""
        for engine in self.engines.engines:
            for n in range(WAKE_TRIES):
                try:
                    await wake(self.engines, engine)
                    break
                except (EngineAway, EngineFailed) as e:
                    log.error("engine %s does not wake (try %d of %d): %s", engine.url, n + 1, WAKE_TRIES, e)
                    await asyncio.sleep(WAKE_PAUSE)

    async def rouse(self) -> None:
        """Now and then: wake what sleeps though nobody holds it, because holder and control plane are gone."""
        if self.shared and self.held is None:
            for engine in self.engines.healthy():
                async with engine.lock:  # nobody puts it to sleep meanwhile
                    if self.engines.awake.is_set() and await asleep(self.engines, engine):
                        log.warning("engine %s sleeps and nobody holds it: waking it", engine.url)
                        await wake(self.engines, engine)

    def seconds_held(self) -> float:
        """Now and before."""
        return self.seconds + (time.monotonic() - self.held.began if self.held is not None else 0.0)
