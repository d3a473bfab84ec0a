"""Calls of other formats that are asked as chat completions, because only that route gives token ids.

``call.back`` makes the client's format of the reply, and ``call.plain`` is the body as the client sent it. Until a
byte was relayed such a call can still go to its own route, unchanged and without ids.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import aiohttp

from slipstream_proxy.data.call.step import CallStep
from slipstream_proxy.dialects.base import loads

if TYPE_CHECKING:
    from slipstream_proxy.data.call.call import ActiveCall

log = logging.getLogger(__name__)

CHAT = "/v1/chat/completions"
_AGAIN = 5.0
_FRESH = 60.0
"""Seconds after which an engine is asked again how long its context is: it may be another one since a restart."""

_NOT_THE_REQUEST = (408, 429)
"""4xx that say nothing about the request."""


class Translation(CallStep):
    """Sends the chat request, and translates its reply."""

    def __init__(self, contexts: ContextLengths, *, own_responses: bool) -> None:
        """``own_responses``: responses go to the engine's own route (``engine.own_responses``)."""
        self._contexts = contexts
        self._own_responses = own_responses

    def choose(self, call: ActiveCall) -> bool:
        back = call.back
        if back is None:
            return True
        if call.dialect.name == "responses" and self._own_responses:
            _as_asked(call, "engine.own_responses")
            return True
        if back.context_needed and back.context is None:
            context = self._contexts.of(call.servers[0], call.go_on)
            if context is None:
                return False
            if context <= 0:
                _as_asked(call, "the length of the engine's context is not known")
                return True
            back.context = context
        call.path = CHAT
        return True

    def event(self, call: ActiveCall, event: bytes) -> bytes | None:
        return event if call.back is None else call.back.event(event)

    def response_body(self, call: ActiveCall, status: int, body: bytes) -> bytes:
        return body if call.back is None or status != 200 else call.back.whole(body)

    def rejected(self, call: ActiveCall, status: int) -> bool:
        """The engine's own route says what there is to say of a request that is no chat completion."""
        if call.back is None or status >= 500 or status in _NOT_THE_REQUEST:
            return False
        call.tries -= 1
        _as_asked(call, "the engine refused it as a chat completion")
        return True


def _as_asked(call: ActiveCall, note: str) -> None:
    call.payload, call.plain, call.back, call.note = call.plain, None, None, note
    call.path = call.request.path


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
