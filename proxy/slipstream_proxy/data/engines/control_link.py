"""The data plane's line to the control plane: what is live (a subscription), an episode's pin (a question), forwarded
requests.

Nothing here can stop a call: while the control plane is away the worker goes on with the last state it knows.

Not compiled: mypyc loses an exception while an ``__aexit__`` waits.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from slipstream.shared.backoff import Backoff
from slipstream_proxy.data.engines.live import LiveView
from slipstream_proxy.data.engines.standstill import listener_of, pulse_of, stands_still
from slipstream_proxy.json_types import Json, JsonObject

log = logging.getLogger(__name__)

PING_AFTER_S, PING_TIMEOUT_S = 0.3, 0.6
"""Seconds that a forwarded request waits before the control plane is pinged, and that the ping may take."""
WRITE_PATIENCE = 30.0
"""Seconds without an answered ping after which a write is given up, if the control plane is slow. On a machine that is
overloaded it misses a ping now and then, and a reward that is refused is lost: hardly any agent sends one twice. If it
stands still, nobody waits for it.
"""
PIN_PATIENCE, PIN_LIMIT = 1.4, 3.0
"""The same for new runs' pins, of which a worker can decide alone; and the seconds after which it does in any case."""
PINS_URL = URL("http://control/internal/pins")
IN_USE = URL("http://control/internal/in-use")
ALLOWANCE_URL = URL("http://control/internal/allowance")
ALLOWANCE_PATIENCE_S = 2.0
"""Seconds that calls wait for more of their quota."""
MOST_PINS = 512
"""Pins in one request."""
CROWDED_RETRY_S = 0.05
"""Seconds until the next try where so many requests wait to be accepted that the system takes no more."""
TAKING_PATIENCE = 0.7
"""The same for rewards, end marks and feedback, which a worker takes by itself then. A look takes 0.3 s and more."""
RESTART_PATIENCE_S, RESTART_RETRY_S = 60.0, 0.2
"""Seconds that what must not be lost waits while the control plane is started again, and nobody listens on its socket;
and between two tries.
"""
NOBODY_LISTENS_ERRORS = (errno.ECONNREFUSED, errno.ENOENT)
"""Errors of a connection to a socket on which nobody listens."""
HEARTBEAT_TIMEOUT_S = 15.0
"""Seconds without a line after which the stream counts as dead (the control plane sends one each 5 s)."""


class Look(enum.Enum):
    """What a ping found."""

    ANSWERED = enum.auto()
    SLOW = enum.auto()
    AWAY = enum.auto()
    STANDS_STILL = enum.auto()


class ControlLink:
    def __init__(self, socket: Path, live: LiveView) -> None:
        self.socket = socket
        self.live = live
        self._name = os.urandom(8).hex()
        """Tells the control plane whose subscription ends."""
        self._in_use: frozenset[str] = frozenset()
        self._saying: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._asked: list[tuple[JsonObject, asyncio.Future[JsonObject | None]]] = []
        """Pins that wait for the next request."""
        self._asking: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[object] | None = None
        self._looking: asyncio.Task[Look] | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """Bodies pass as they are: nothing is decompressed and no total time-out ends a live stream."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(self.socket), limit=0),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=2.0),
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            )
        return self._session

    async def request(
        self,
        method: str,
        url: URL,
        *,
        patience: float | None = None,
        restart: bool = False,
        instead: bool = False,
        **options: Any,
    ) -> aiohttp.ClientResponse:
        """``ClientSession.request``, for routes that may take long. Raises ``TimeoutError`` if the control plane does
        not answer a ping meanwhile: for ``patience`` seconds, else within a second for a read or where it stands
        still, and after ``WRITE_PATIENCE`` for another write.

        ``restart``: where nobody listens, or the line breaks, it is sent again for up to
        ``RESTART_PATIENCE_S``.
        Its body is bytes, and sent twice it does no harm. ``instead``: the caller has another way, and takes it after
        ``TAKING_PATIENCE`` seconds, whatever the reason.
        """
        patience = TAKING_PATIENCE if instead else patience
        running = asyncio.ensure_future(self._accepted(method, url, restart=restart, **options))
        if patience is None:
            patience = 0.0 if method in ("GET", "HEAD") else WRITE_PATIENCE
        clock = asyncio.get_running_loop().time
        answered = clock()
        try:
            while not (await asyncio.wait({running}, timeout=PING_AFTER_S))[0]:
                found = await self._look()
                if found is Look.ANSWERED or (restart and not instead and found is Look.AWAY):
                    answered = clock()
                elif not running.done() and (found is Look.STANDS_STILL or clock() - answered > patience):
                    log.warning("the control plane did not answer for %.1f s: %s refused", clock() - answered, method)
                    raise TimeoutError("the control plane hangs")
            return running.result()
        finally:
            if not running.cancel() and not running.cancelled():
                running.exception()  # looked at, where nobody else does

    async def _accepted(self, method: str, url: URL, *, restart: bool, **options: Any) -> aiohttp.ClientResponse:
        """``ClientSession.request``; where the control plane's queue of new connections is full, it waits for room."""
        clock = asyncio.get_running_loop().time
        until = clock() + RESTART_PATIENCE_S if restart else 0.0
        while True:
            try:
                return await self.session.request(method, url, **options)
            except aiohttp.ClientConnectorError as e:  # nothing of the request was sent
                if e.errno != errno.EAGAIN and not (e.errno in NOBODY_LISTENS_ERRORS and clock() < until):
                    raise
                await asyncio.sleep(CROWDED_RETRY_S if e.errno == errno.EAGAIN else RESTART_RETRY_S)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if clock() >= until:
                    raise
                await asyncio.sleep(RESTART_RETRY_S)

    async def _look(self) -> Look:
        """Ping it. Whoever asks meanwhile shares the answer: each ping takes a place in its queue."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._ping())
        return await asyncio.shield(self._looking)

    async def _ping(self) -> Look:
        process = listener_of(self.socket)
        before = pulse_of(process)
        timeout = aiohttp.ClientTimeout(total=PING_TIMEOUT_S)
        try:
            async with self.session.get("http://control/internal/healthz", timeout=timeout):
                return Look.ANSWERED
        except (aiohttp.ClientError, OSError, TimeoutError) as e:
            if isinstance(e, aiohttp.ClientConnectorError) and e.errno in NOBODY_LISTENS_ERRORS:
                return Look.AWAY
        return Look.STANDS_STILL if stands_still(before, pulse_of(process)) else Look.SLOW

    async def close(self) -> None:
        for task in (self._asking, self._telling, self._saying):
            if task is not None:
                task.cancel()
        if self._looking is not None:
            self._looking.cancel()
        if self._session is not None:
            await self._session.close()

    async def follow(self) -> None:
        """Keep ``live`` up to date until cancelled."""
        backoff = Backoff(0.05, 1.0)
        while True:
            try:
                timeout = aiohttp.ClientTimeout(total=None, sock_connect=2.0, sock_read=HEARTBEAT_TIMEOUT_S)
                where = URL("http://control/internal/live").with_query(worker=self._name)
                async with self.session.get(where, timeout=timeout) as reply:
                    if reply.status != 200:
                        raise aiohttp.ClientError(f"status {reply.status}")
                    async for line in _lines(reply.content):
                        state = json.loads(line)
                        if state:
                            self.live.update(state)
                        if not self.live.connected and self.live.known:
                            log.info("the control plane is connected")
                            self.live.connected = True
                            if self._in_use:
                                self._say_in_use()
                        backoff.reset()
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError, AttributeError) as e:
                log.debug("control plane: %s", e)
            if self.live.connected:
                log.warning("the control plane is away: serving on with what was live last")
                self.live.connected = False
            await backoff.sleep()

    async def pin(
        self, key: str, episode: str, model: str, task: str | None, split: str, tags: dict[str, str]
    ) -> JsonObject | None:
        """{"adapter", "arm", "chances"} of a new episode; None: nobody answered in time, decide alone.

        All episodes that wait are asked for in one request. While it is under way, the next ones gather.
        """
        if not self.live.connected:
            return None
        answer: asyncio.Future[JsonObject | None] = asyncio.get_running_loop().create_future()
        ask = {"key": key, "episode": episode, "model": model, "task": task, "split": split, "tags": tags}
        self._asked.append((ask, answer))
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="pins")
        return await answer

    def use(self, adapters: Iterable[str]) -> None:
        """Calls that no pin stands for use these now: they stay in the engines. Nobody waits for that to arrive."""
        in_use = frozenset(adapters)
        if in_use != self._in_use:
            self._in_use = in_use
            self._say_in_use()

    def _say_in_use(self) -> None:
        if self.live.connected and (self._saying is None or self._saying.done()):
            self._saying = asyncio.create_task(self._send_in_use(), name="adapters in use")

    async def _send_in_use(self) -> None:
        sent = None
        while sent != self._in_use:
            sent = self._in_use
            told = {"worker": self._name, "adapters": sorted(sent)}
            try:
                async with asyncio.timeout(PIN_LIMIT), self.session.post(IN_USE, json=told) as reply:
                    await reply.read()
            except (aiohttp.ClientError, OSError, TimeoutError) as e:
                log.debug("adapters in use: %s", e)  # with the subscription the control plane drops what it knew

    def tell(self) -> None:
        """A call of an agent comes. Nobody waits for that to arrive."""
        if self.live.connected and (self._telling is None or self._telling.done()):
            self._telling = asyncio.create_task(self._pins([]), name="told of a call")

    async def _ask(self) -> None:
        while self._asked:
            some, self._asked = self._asked[:MOST_PINS], self._asked[MOST_PINS:]
            answers = await self._pins([ask for ask, _ in some])
            if answers is None:  # nobody waits for a control plane that has just kept others waiting
                some, self._asked = [*some, *self._asked], []
                answers = [None] * len(some)
            for (_, waiting), answer in zip(some, answers, strict=True):
                if not waiting.done():
                    waiting.set_result(answer)

    async def allowance(self, what: str, patience: float) -> int | None:
        """How much more of a quota this proxy may use today; None: nobody answered within ``patience`` seconds."""
        try:
            async with asyncio.timeout(patience), self.session.post(ALLOWANCE_URL, json={"what": what}) as reply:
                found = json.loads(await reply.read()) if reply.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as e:
            log.debug("allowance: %s", e)
            return None
        granted = found.get("granted") if isinstance(found, dict) else None
        return granted if isinstance(granted, int) else None

    async def _pins(self, asked: list[JsonObject]) -> list[JsonObject | None] | None:
        try:
            async with (
                asyncio.timeout(PIN_LIMIT),
                await self.request("POST", PINS_URL, patience=PIN_PATIENCE, json=asked) as reply,
            ):
                found = json.loads(await reply.read()) if reply.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as e:
            log.debug("pins: %s", e)
            return None
        if not isinstance(found, list) or len(found) != len(asked):
            return None
        return [one if isinstance(one, dict) and isinstance(one.get("adapter"), str) else None for one in found]


async def _lines(content: aiohttp.StreamReader) -> Json:
    """Lines of any length (``readline`` of aiohttp has a limit)."""
    rest = b""
    async for data in content.iter_any():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
