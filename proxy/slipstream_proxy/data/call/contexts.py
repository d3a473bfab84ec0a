"""What only an engine knows: how long its context is, how its chat template takes system messages and thinking, and
which fields its responses say back.

Not compiled: mypyc loses an exception while an ``__aexit__`` waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, TypeVar

import aiohttp

from slipstream.engines import DEFAULT_ENGINE, ENGINE_OBJECTS
from slipstream.engines.engine import ChatTemplate, Engine, EngineAnswer, EngineQuestion, Steps, ask_in_loop
from slipstream.settings import EngineConfig
from slipstream_proxy.answers import whole_answer
from slipstream_proxy.data.engines.live import LiveView
from slipstream_proxy.dialects.base import dumps, loads

log = logging.getLogger(__name__)

_AGAIN = 5.0
_FRESH = 60.0
"""Seconds after which an engine is asked again: it may be another one since a restart."""

_NOT_SAID: dict[str, list[str]] = {}
Fact = TypeVar("Fact")


class _EngineFacts(Generic[Fact]):
    """One fact of each engine."""

    what = ""
    unknown: Fact
    """The engine did not say it."""

    def __init__(self, engine: EngineConfig | None, timeout: float, live: LiveView | None = None) -> None:
        """``timeout`` in seconds. ``live`` knows of which kind the engines are."""
        self._live = live
        self._config = engine
        self._timeout = timeout
        self._known: dict[str, Fact] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, url: str, then: Callable[[], None]) -> Fact | None:
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
        found = self.unknown
        try:
            timeout = aiohttp.ClientTimeout(total=self._timeout)
            headers = self._config.headers(url) if self._config is not None else {}
            async with aiohttp.ClientSession(timeout=timeout, trust_env=False, headers=headers) as session:
                found = await ask_in_loop(self._steps(), lambda question: _answer(session, url, question))
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
            log.warning("%s does not say %s: %r", url, self.what, e)
        self._known[url] = found
        asyncio.get_running_loop().call_later(_AGAIN if found == self.unknown else _FRESH, self._known.pop, url, None)
        for then in self._waiting.pop(url, ()):
            try:
                then()
            except Exception:
                log.exception("a call failed while it waited for its engine")

    def _engine(self) -> Engine:
        return DEFAULT_ENGINE if self._live is None else ENGINE_OBJECTS[self._live.kind]

    def _steps(self) -> Steps[Fact]:
        raise NotImplementedError

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()


async def _answer(session: aiohttp.ClientSession, url: str, question: EngineQuestion) -> EngineAnswer:
    headers = {"content-type": "application/json"} if question.body is not None else {}
    data = dumps(question.body) if question.body is not None else None
    asking = session.request(question.method, url + question.path, data=data, headers=headers, allow_redirects=False)
    async with asking as reply:
        body = await whole_answer(reply)
        return EngineAnswer(reply.status, loads(body) if reply.status == 200 else None, body.decode("utf-8", "replace"))


class ContextLengths(_EngineFacts[int]):
    """How many tokens each engine's context has. 0: it did not say."""

    what = "how long its context is"
    unknown = 0

    def _steps(self) -> Steps[int]:
        return self._engine().context()


class ResponseFields(_EngineFacts[dict[str, list[str]]]):
    """Each engine's ``Engine.response_fields``."""

    what = "what its responses say back"
    unknown = _NOT_SAID

    def _steps(self) -> Steps[dict[str, list[str]]]:
        return self._engine().response_fields()


class ChatTemplates(_EngineFacts[ChatTemplate]):
    """Each engine's ``ChatTemplate``."""

    what = "what its chat template takes"
    unknown = ChatTemplate()

    def __init__(self, engine: EngineConfig | None, timeout: float, model: str, live: LiveView | None = None) -> None:
        """``model``: a name that each engine serves."""
        super().__init__(engine, timeout, live)
        self._model = model

    def _steps(self) -> Steps[ChatTemplate]:
        return self._engine().template(self._model)
