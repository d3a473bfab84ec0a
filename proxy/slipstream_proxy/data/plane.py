"""What a worker's calls share: configuration, keys, episodes, engines, spool and counters."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from slipstream.config import Config
from slipstream.errors import ConfigError
from slipstream_proxy.data.admission import Admission
from slipstream_proxy.data.episodes import Episode, Episodes, Pinned
from slipstream_proxy.data.hold import Holding
from slipstream_proxy.data.limits import Limits
from slipstream_proxy.data.link import ControlLink
from slipstream_proxy.data.live import Live
from slipstream_proxy.data.metrics import Metrics
from slipstream_proxy.data.record import Commons
from slipstream_proxy.data.routing import Routes
from slipstream_proxy.data.shared import Shared
from slipstream_proxy.data.tracing import make_tracing
from slipstream_proxy.data.translated import Contexts
from slipstream_proxy.data.upstream import Pool
from slipstream_proxy.keys import Keys
from slipstream_proxy.spool import SpoolWriter

log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class Replay:
    """A completed reply under an idempotency key."""

    body_hash: str
    status: int
    block: bytes
    body: bytes
    stream: bool


class Replays:
    """The latest completed replies, up to ``limit`` bytes in all."""

    def __init__(self, limit: int = 32 * 2**20) -> None:
        self._limit = limit
        self._bytes = 0
        self._kept: OrderedDict[tuple[str, bytes], Replay] = OrderedDict()

    def get(self, key: str, idempotency: bytes, body_hash: str) -> Replay | None:
        found = self._kept.get((key, idempotency))
        return found if found is not None and found.body_hash == body_hash else None

    def put(self, key: str, idempotency: bytes, replay: Replay) -> None:
        if len(replay.body) > self._limit // 8:
            return
        before = self._kept.pop((key, idempotency), None)
        self._bytes += len(replay.body) - (len(before.body) if before else 0)
        self._kept[(key, idempotency)] = replay
        while self._bytes > self._limit:
            self._bytes -= len(self._kept.popitem(last=False)[1].body)


class Plane:
    def __init__(self, config: Config, number: int = 0, keyed: bool | None = None) -> None:
        self.config = config
        self.number = number
        self.loop = asyncio.get_running_loop()
        self.header_limit, self.body_limit = config.proxy.header_limit, config.proxy.body_limit
        self.metrics = Metrics(config.proxy.metric_tags)
        self.debug = logging.getLogger("slipstream_proxy.data.call_log").isEnabledFor(logging.DEBUG)
        self.tracing = make_tracing()
        self.limits = Limits(config.root / "limits", config.proxy.workers, number)
        self.admission = Admission(Keys(config.keys_file), self.limits, keyed)
        self.routes = Routes(config)
        self.live = Live(config)
        self.holding = Holding(self)
        self.live.changed = self.holding.look
        self.link = ControlLink(config.socket, self.live)
        window = config.identity.continue_window
        shared = Shared(config.root / "conversations", window) if config.proxy.workers > 1 else None
        self.episodes = Episodes(window=window, shared=shared)
        self._pins: dict[tuple[str, str, str, str], dict[str, Pinned]] = {}
        self._waiting: dict[tuple[str, str, str], list[Callable[[], None]]] = {}
        """(key, episode, model) → who waits for its pin."""
        self.commons = Commons()
        self.spool = SpoolWriter(
            config.spool_dir,
            f"data{number}",
            segment_bytes=config.proxy.segment_bytes,
            durability=config.proxy.durability,
            on_lost=self._lost,
        )
        self.replays = Replays()
        self.contexts = Contexts(self)
        self.redact = load_function(config.proxy.redact) if config.proxy.redact else None
        self.engine_key = (
            f"authorization: Bearer {config.engine.api_key}\r\n".encode() if config.engine.api_key else b""
        )
        self.pools: dict[str, Pool] = {}
        self.session: aiohttp.ClientSession | None = None
        """For routes that are passed through."""
        self.in_flight: set[Any] = set()
        self.draining = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_loss = 0.0

    def _lost(self, count: int, error: BaseException) -> None:
        self.metrics.add("slipstream_capture_lost_total", amount=count)
        now = self.loop.time()
        if now - self._last_loss > 1.0:
            self._last_loss = now
            log.error("capture lost: %d call(s) could not be written to the spool: %s", count, error)

    def pool(self, url: str) -> Pool:
        found = self.pools.get(url)
        if found is None:
            proxy = self.config.proxy
            found = self.pools[url] = Pool(url, connect_timeout=proxy.connect_timeout, timeout=proxy.upstream_timeout)
        return found

    def pinned(self, episode: Episode, model: str) -> Pinned | None:
        """The episode's pin, if it has one."""
        pin = episode.pins.get(model)
        if pin is None or pin.checked == self.live.version:
            return pin
        return self._checked(episode, model, pin)

    def pin(self, episode: Episode, model: str, then: Callable[[], None]) -> Pinned | None:
        """The pin of an episode that has none; None: ``then`` is called once it is there."""
        if not self.live.connected:
            return self._pin_alone(episode, model)
        waiting = self._waiting.get((*episode.name, model))
        if waiting is not None:
            waiting.append(then)
            return None
        self._waiting[(*episode.name, model)] = [then]
        task = self.loop.create_task(self._ask(episode, model))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    def _checked(self, episode: Episode, model: str, pin: Pinned) -> Pinned:
        if not self.live.servers(pin.adapter, episode.id):
            pin = self._pin(episode, model, self.live.replacement(model, pin.adapter), "live", "moved")
        pin.checked = self.live.version
        return pin

    def _pin_alone(self, episode: Episode, model: str) -> Pinned:
        adapter, arm = self.live.decide(model, episode.name[0], episode.id)
        self.metrics.add("slipstream_pins_total", 'by="worker"')
        return self._checked(episode, model, self._pin(episode, model, adapter, arm, "local"))

    def _pin(self, episode: Episode, model: str, adapter: str, arm: str, how: str) -> Pinned:
        """Episodes share the dict that most of them have: a worker remembers a hundred thousand."""
        key = (model, adapter, arm, how)
        alone = self._pins.get(key)
        if alone is None:
            if len(self._pins) >= 1024:
                self._pins.clear()
            alone = self._pins[key] = {model: Pinned(adapter, arm, how)}
        others = {name: pin for name, pin in episode.pins.items() if name != model}
        episode.pins = {**others, **alone} if others else alone
        return alone[model]

    async def _ask(self, episode: Episode, model: str) -> None:
        answer = await self.link.pin(episode.name[0], episode.id, model, episode.task, episode.split)
        if answer is None:
            self._pin_alone(episode, model)
        else:
            self._pin(episode, model, answer["adapter"], str(answer.get("arm", "live")), "control")
            if isinstance(answer.get("episode"), str):
                episode.id = answer["episode"]
            self.metrics.add("slipstream_pins_total", 'by="control"')
        for then in self._waiting.pop((*episode.name, model), ()):
            try:
                then()
            except Exception:
                log.exception("a call failed after its pin")

    def sweep(self) -> None:
        now = self.loop.time()
        for pool in self.pools.values():
            pool.sweep(now)

    async def close(self) -> None:
        for pool in self.pools.values():
            pool.close()
        for task in list(self._tasks):
            task.cancel()
        self.holding.close()
        self.contexts.close()
        await self.spool.close()
        if self.session is not None:
            await self.session.close()
        await self.link.close()
        self.limits.close()
        if self.episodes.shared is not None:
            self.episodes.shared.close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)


def load_function(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """``module:function``. Raises ``ConfigError``."""
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as e:
        raise ConfigError(f"proxy.redact = {name!r}: {e}") from e
    if not callable(found):
        raise ConfigError(f"proxy.redact = {name!r}: not a function")
    return found  # type: ignore[no-any-return]
