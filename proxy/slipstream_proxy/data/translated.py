"""Calls whose format is asked as a chat completion: what differs on their way.

``call.back`` turns the reply round, ``call.plain`` is the body as the client sent it. Until a byte has been relayed such a call can still go
``as_asked``: to its own route, unchanged, without ids.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import aiohttp

from slipstream_proxy.dialects.base import Injected, loads

if TYPE_CHECKING:
    from slipstream_proxy.data.callstate import CallState
    from slipstream_proxy.data.plane import Plane

log = logging.getLogger(__name__)

CHAT = "/v1/chat/completions"
_AGAIN = 5.0
_FRESH = 60.0
"""Seconds after which an engine is asked again how long its context is: one that did not say, one that did (it may have been restarted)."""

_ROUND = (408, 429)
"""4xx that say nothing about the request."""


def begin(call: CallState, injected: Injected, body: dict[str, Any]) -> None:
    call.back, call.plain = injected.back, body


def as_asked(call: CallState, note: str) -> None:
    call.text, call.plain, call.back, call.note = call.plain, None, None, note


def settle(call: CallState, then: Callable[[], None]) -> bool:
    """Whether the call can be sent now; else ``then`` is called once it is known how."""
    back = call.back
    if back is None:
        return True
    if call.dialect.name == "responses" and call.plane.config.engine.own_responses:
        as_asked(call, "engine.own_responses")
        return True
    if not back.context_needed or back.context is not None:
        return True
    context = call.plane.contexts.of(call.servers[0], then)
    if context is None:
        return False
    if context > 0:
        back.context = context
    else:
        as_asked(call, "the length of the engine's context is not known")
    return True


def event(call: CallState, text: bytes) -> bytes | None:
    """What the client shall see of a chat event; held back where it is the stream's end."""
    back = call.back
    assert back is not None
    shown = back.event(text)
    if text.startswith((b"data: [DONE]", b"data:[DONE]")) and shown is not None:
        call.terminal = True
        call.held.append(shown)
        return None
    if shown is not None and call.turn is not None:
        back.shown.append(shown)
    return shown


def refused(call: CallState, status: int) -> bool:
    """The engine does not take it as a chat completion: then its own route says what there is to say."""
    if call.back is None or call.stream or not 400 <= status < 500 or status in _ROUND:
        return False
    call.parts.clear()
    call.head = call.first = None
    call.tries -= 1
    as_asked(call, "the engine refused it as a chat completion")
    return True


class Contexts:
    """How many tokens each engine's context has, as its ``/v1/models`` says. 0: it did not say."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self._known: dict[str, int] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, url: str, then: Callable[[], None]) -> int | None:
        """None: it is being asked, and ``then`` is called when that is over."""
        known = self._known.get(url)
        if known is not None:
            return known
        waiting = self._waiting.setdefault(url, [])
        waiting.append(then)
        if len(waiting) == 1:
            task = self.plane.loop.create_task(self._ask(url))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return None

    async def _ask(self, url: str) -> None:
        found = 0
        try:
            headers = {"authorization": f"Bearer {k}"} if (k := self.plane.config.engine.api_key) else {}
            timeout = aiohttp.ClientTimeout(total=self.plane.config.proxy.connect_timeout)
            async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session, session.get(f"{url}/v1/models", headers=headers) as reply:  # fmt: skip
                cards = loads(await reply.read())["data"]
            found = next(c["max_model_len"] for c in cards if isinstance(c.get("max_model_len"), int))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, LookupError, TypeError, AttributeError, StopIteration) as e:  # fmt: skip
            log.warning("%s does not say how long its context is: %r", url, e)
        self._known[url] = found
        self.plane.loop.call_later(_FRESH if found else _AGAIN, self._known.pop, url, None)
        for then in self._waiting.pop(url, ()):
            try:
                then()
            except Exception:
                log.exception("a call failed while it waited for the engine's context")

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
