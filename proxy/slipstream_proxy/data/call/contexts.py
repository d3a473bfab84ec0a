"""How long each engine's context is. Not compiled: mypyc loses an exception while an ``__aexit__`` waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import aiohttp

from slipstream_proxy.dialects.base import loads

log = logging.getLogger(__name__)

_AGAIN = 5.0
_FRESH = 60.0
"""Seconds after which an engine is asked again how long its context is: it may be another one since a restart."""


class ContextLengths:
    """How many tokens each engine's context has, as its ``/v1/models`` says. 0: it did not say."""

    def __init__(self, api_key: str | None, timeout: float) -> None:
        """``timeout`` in seconds."""
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = timeout
        self._known: dict[str, int] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, url: str, then: Callable[[], None]) -> int | None:
        """None: the engine is being asked, and ``then`` is called when that is over."""
        known = self._known.get(url)
        if known is not None:
            return known
        waiting = self._waiting.setdefault(url, [])
        waiting.append(then)
        if len(waiting) == 1:
            task = asyncio.get_running_loop().create_task(self._ask(url))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return None

    async def _ask(self, url: str) -> None:
        found = 0
        try:
            found = await self._read(url)
        except (
            aiohttp.ClientError,
            OSError,
            TimeoutError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            StopIteration,
        ) as e:
            log.warning("%s does not say how long its context is: %r", url, e)
        self._known[url] = found
        asyncio.get_running_loop().call_later(_FRESH if found else _AGAIN, self._known.pop, url, None)
        for then in self._waiting.pop(url, ()):
            try:
                then()
            except Exception:
                log.exception("a call failed while it waited for the engine's context")

    async def _read(self, url: str) -> int:
        timeout = aiohttp.ClientTimeout(total=self._timeout)
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.get(f"{url}/v1/models", headers=self._headers) as reply,
        ):
            cards = loads(await reply.read())["data"]
        lengths = [int(c["max_model_len"]) for c in cards if isinstance(c.get("max_model_len"), int)]
        return lengths[0]

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
