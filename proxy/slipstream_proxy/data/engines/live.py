"""What is live: engines, adapters and arms, as the control plane tells it or as it stood in ``live.json`` last."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from slipstream.config import Config
from slipstream.engines import DEFAULT_ENGINE, ENGINE_OBJECTS, started
from slipstream_proxy.assignment import Assignment, assign
from slipstream_proxy.data.engines.hangs import HangTable
from slipstream_proxy.data.engines.selection import TRIED_ENGINES, AbleEngines, EngineSelection
from slipstream_proxy.data.wire.errors import RequestRefused
from slipstream_proxy.json_types import JsonObject

log = logging.getLogger(__name__)


@dataclass(slots=True)
class EngineView:
    url: str
    ok: bool = True
    loaded: frozenset[str] = frozenset()
    packed: bool = False
    """It has Slipstream's plugin."""
    parses: bool = True
    """It has a reasoning or a tool parser."""
    sampling: tuple[tuple[str, float], ...] = ()
    """What it samples with where a call says nothing, as far as that is not neutral."""
    sampling_known: bool = True
    """False: there may be more of it."""
    raw: bool = False
    """Its log-probabilities are those before temperature."""
    kind: str = DEFAULT_ENGINE.kind
    kind_known: bool = True
    """False: it has not said yet what it is, and is taken for one of that kind."""
    gives_ids: bool = True
    routes: frozenset[str] = frozenset()
    """Of an engine without token ids: paths of the formats that it has beside chat completions."""
    health: str = DEFAULT_ENGINE.health
    """Path of its health check."""
    router: bool = False
    """It sends calls on to the other engines, which take them where it does not answer."""

    @classmethod
    def of(cls, told: JsonObject) -> EngineView:
        url, loaded = str(told["url"]).rstrip("/"), frozenset(told.get("loaded", ()))
        sampling = tuple(sorted((str(name), value) for name, value in told.get("sampling", {}).items()))
        known = bool(told.get("sampling_known", True))
        packed, parses = bool(told.get("packed")), bool(told.get("parses", True))
        kind = ENGINE_OBJECTS.get(str(told.get("kind")), DEFAULT_ENGINE)
        return cls(
            url,
            bool(told["ok"]),
            loaded,
            packed,
            parses,
            sampling,
            known,
            bool(told.get("raw_logprobs")),
            kind.kind,
            bool(told.get("kind_known", True)),
            kind.gives_ids,
            frozenset(told.get("routes", ())),
            kind.health,
            bool(told.get("router")),
        )


class Trouble:
    """Why an engine gets no calls, or fewer.

    ``doubtful``: a reply broke off, and other engines come first until ``until`` (monotonic seconds). ``down``: it
    refused the connection or hung, and gets no call until a health check finds it. ``trial``: it hung, and answers
    health checks, so it gets one call at a time, over all workers, until it answers one.
    """

    __slots__ = ("hung", "kind", "until")

    def __init__(self, kind: str, *, hung: bool = False, until: float = 0.0) -> None:
        self.kind, self.hung, self.until = kind, hung, until


@dataclass(slots=True)
class ModelView:
    base: str
    live: str
    arms: list[tuple[str, str, float]] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    """Group of episodes → the adapter that it keeps (``assignment.assign``)."""
    first: frozenset[str] = frozenset()
    """Who alone gets an arm; empty: all."""
    since: float = -math.inf
    """When this live adapter was first seen (monotonic seconds); before all time where there was none yet."""


class LiveView:
    """``connected``: the control plane's stream is up. Without it the last state serves on."""

    def __init__(
        self, config: Config, hangs: HangTable | None = None, changed: Callable[[], None] | None = None
    ) -> None:
        """``hangs`` None: this worker is alone. ``changed`` is called after each update from here on."""
        name = config.model_name
        timeout = config.proxy.upstream_timeout
        self.hangs = hangs if hangs is not None else HangTable(timeout)
        self._told = b""
        self.selection = EngineSelection()
        self._able: dict[str, AbleEngines] = {}
        """Adapter → the engines that have it, while none is in trouble. Cleared where engines change."""
        self._hung: dict[str, float] = {}
        """What the table said last of each engine that hung."""
        self.trying: dict[str, str] = {}
        """Engines on trial, with the id of this worker's call that tries them."""
        kind, known = started(config), config.engine.kind != "auto"
        router = config.engine.router
        self.engines = [
            EngineView(
                u, kind=kind.kind, kind_known=known, gives_ids=kind.gives_ids, health=kind.health, router=u == router
            )
            for u in ([router] if router else config.engine.addresses())
        ]
        self.models: dict[str, ModelView] = {name: ModelView(name, name)}
        self.gone: dict[str, tuple[str, float]] = {}
        """Version that serves no more → its state, and since when (seconds since the epoch)."""
        self.forgotten: frozenset[str] = frozenset()
        """Forgotten episodes of which calls still came (``key/mark_of``): none of theirs is kept."""
        self.connected = False
        self.known = False
        self.asks = False
        """The control plane wants to be told when a call of an agent comes."""
        self.held_until: float | None = None
        """The trainer has the GPU until then (seconds since the epoch), or until the control plane says otherwise."""
        self.changed: Callable[[], None] = lambda: None
        self.version = 0
        self.packed = False
        """Every engine has Slipstream's plugin. (A call is asked for before its engine is chosen.)"""
        self.parses = True
        """Some engine has a reasoning or a tool parser."""
        self.sampling: tuple[tuple[str, float], ...] = ()
        """What the engines sample with where a call says nothing. Where they differ: the first one's, for all calls."""
        self.sampling_known = False
        """True once the control plane has said it: what is not known is not recorded as neutral."""
        self.raw = False
        """Some engine's log-probabilities are those before temperature."""
        self.kind = kind.kind
        """Of the engines. Where they differ, and for what else can be told of all calls only: one without token ids."""
        self.gives_ids = kind.gives_ids
        """Every engine can be asked for them."""
        self.kind_known = known
        """Every engine has said what it is."""
        self.routes: frozenset[str] = frozenset()
        """Formats that every engine without token ids has a route for."""
        self.trouble: dict[str, Trouble] = {}
        """Engines that did not answer as they should: this worker, or any where they hung."""
        self._window = config.episodes.idle_timeout
        self._file = config.root / "live.json"
        self._read_file()
        self.changed = changed or self.changed

    def _read_file(self) -> None:
        try:
            self.update(json.loads(self._file.read_text()))
        except OSError:
            return
        except Exception as e:
            log.warning("live.json cannot be read: %s", e)
            return
        self.sampling_known = False  # another vLLM may be there by now
        for engine in self.engines:
            engine.ok = True  # what was down then need not be down now
        self._able.clear()

    def update(self, state: JsonObject) -> None:
        """Take over a state as INTERNAL routes send it; raises at a malformed one and then changes nothing."""
        engines = [EngineView.of(e) for e in state.get("engines", ())]
        models = {
            str(name): ModelView(
                str(m["base"]),
                str(m["live"]),
                [(str(a), str(b), float(c)) for a, b, c in m.get("arms", ())],
                {str(group): str(adapter) for group, adapter in m.get("kept", {}).items()},
                frozenset(m.get("first", ())),
            )
            for name, m in state.get("models", {}).items()
        }
        for name, model in models.items():
            before = self.models.get(name)
            if before is not None and before.live == model.live:
                model.since = before.since
            elif self.known or model.live != model.base:
                model.since = time.monotonic()
        gone = {str(name): (str(what), float(at)) for name, (what, at) in state.get("gone", {}).items()}
        held = state.get("hold")
        until = float(held["until"]) if held else None
        self._able.clear()
        if engines:
            self.engines = engines
            self.packed = all(e.packed for e in engines)
            self.parses = any(e.parses for e in engines)
            up = [e for e in engines if e.ok] or engines
            self.sampling = up[0].sampling
            self.sampling_known = all(e.sampling_known for e in up)
            self.raw = any(e.raw for e in up)
            self.gives_ids = all(e.gives_ids for e in engines)
            self.kind_known = all(e.kind_known for e in engines)
            least = [e for e in engines if not e.gives_ids] or engines
            self.kind = least[0].kind
            self.routes = frozenset.intersection(*(e.routes for e in least))
        if models:
            self.models = models
        self.gone, self.asks = gone, bool(state.get("asks"))
        self.forgotten = frozenset(state.get("forgotten", ()))
        self.held_until = until
        self.known = True
        self.version += 1
        self.changed()

    @property
    def ready(self) -> bool:
        self._learn()
        return any(self._is_up(e) for e in self.engines)

    def _learn(self) -> None:
        """What other workers have found out. Costs one comparison while there is nothing new."""
        told = self.hangs.version()
        if told != self._told:
            self._told = told
            if self._take_over():
                self.changed()

    def _take_over(self) -> bool:
        """Whether an engine began or ceased to hang."""
        new = False
        for engine in self.engines:
            url, since = engine.url, self.hangs.hung(engine.url)
            if since == self._hung.get(url, 0.0):
                continue
            new, self._hung[url] = True, since
            if since:
                self.trouble[url] = Trouble("down", hung=True)
            elif (trouble := self.trouble.get(url)) is not None and trouble.hung:
                del self.trouble[url]
        return new

    def _is_up(self, engine: EngineView) -> bool:
        """Whether it may get calls."""
        trouble = self.trouble.get(engine.url) if self.trouble else None
        if not engine.ok or trouble is None:
            return engine.ok
        if trouble.kind == "trial":
            return engine.url not in self.trying and not self.hangs.taken(engine.url)
        return trouble.kind != "down"

    def _is_doubtful(self, url: str) -> bool:
        trouble = self.trouble.get(url)
        return trouble is not None and (trouble.kind != "doubtful" or trouble.until > time.monotonic())

    def mark_down(self, url: str, *, hung: bool = False) -> None:
        """No connection, or no answer (``hung``). What hung has to answer a call, whatever else happens to it."""
        before = self.trouble.get(url)
        known = before is not None and before.hung
        if hung:
            self._hung[url] = self.hangs.hang(url)
            log.warning("%s %s: it gets one call at a time until it answers one", url, "hangs on" if known else "hangs")
        self.trouble[url] = Trouble("down", hung=hung or known)
        self.changed()

    def mark_doubtful(self, url: str, seconds: float = 2.0) -> None:
        """A reply broke off, which may have been that reply's fault."""
        before = self.trouble.get(url)
        if before is None or before.kind == "doubtful":
            self.trouble[url] = Trouble("doubtful", until=time.monotonic() + seconds)

    def failed(self, url: str, kind: str, call: str, *, silent: bool) -> None:
        """A call got no reply, for a reason as in ``Receiver.on_error``. ``silent``: nor did this worker's others."""
        if kind == "connect":
            self.mark_down(url)
        elif kind == "broken":
            self.mark_doubtful(url)
        elif kind == "timeout" and silent and self.hangs.silent(url):
            self.mark_down(url, hung=True)
        self.release(url, call)

    def mark_reached(self, url: str) -> None:
        """The head of a reply came. Of an engine that hung this says nothing: its server answers, not its model."""
        trouble = self.trouble.get(url)
        if trouble is not None and not trouble.hung:
            del self.trouble[url]

    def finished(self, url: str, call: str, *, well: bool) -> None:
        """A reply came to its end. ``well``: it was no error."""
        if well:
            self.mark_up(url, call)
        else:
            self.release(url, call)

    def mark_up(self, url: str, call: str = "") -> None:
        """It answered a call: its model computes."""
        trouble = self.trouble.pop(url, None)
        if trouble is not None and trouble.hung:
            self._hung[url] = 0.0
            self.hangs.clear(url)
            log.info("%s answers calls again", url)
        self.release(url, call)

    def try_out(self, url: str, call: str) -> None:
        """A call is about to be sent there. Raises ``RequestRefused`` during a trial; else ``release`` must follow."""
        trouble = self.trouble.get(url)
        if trouble is None or not trouble.hung:
            return
        if trouble.kind == "down" or url in self.trying or not self.hangs.claim(url):
            raise RequestRefused(503, "no engine is up at the moment", retry_after=1.0)
        self.trying[url] = call

    def release(self, url: str, call: str) -> None:
        """A call has ended, or was answered."""
        if self.trying and self.trying.get(url) == call:
            del self.trying[url]
            self.hangs.release(url)

    def health_of(self, url: str) -> str:
        """The path of its health check."""
        return next((e.health for e in self.engines if e.url == url), DEFAULT_ENGINE.health)

    def lost(self) -> list[str]:
        """Engines that get no calls until a health check finds them."""
        self._learn()
        down = {url for url, trouble in self.trouble.items() if trouble.kind == "down"}
        return [e.url for e in self.engines if not e.ok or e.url in down]

    def found(self, url: str) -> None:
        """An engine answered a health check."""
        trouble = self.trouble.pop(url, None)
        if trouble is not None and trouble.hung:
            self.trouble[url] = Trouble("trial", hung=True)
            log.info("%s answers health checks. Its calls hung: the next one tries it out", url)
        else:
            log.info("%s is up again", url)
        self._able.clear()
        for engine in self.engines:
            if engine.url == url:
                engine.ok = True

    def _bases(self) -> set[str]:
        return {m.base for m in self.models.values()}

    def decide(
        self, model: str, key: str, task: str | None, episode: str, split: str, tags: dict[str, str]
    ) -> Assignment:
        """The adapter of a new episode, by the rule of the control plane: every worker gives the same answer."""
        state = self.models.get(model)
        if state is None:
            return assign(model, (), key, task, episode, split)
        return assign(state.live, state.arms, key, task, episode, split, tags, state.kept, state.first)

    def is_settled(self, model: str, *, new: bool) -> bool:
        """Whether all running episodes of a model have the live adapter, so that nobody need be asked for one's pin.

        A model with several arms never is. After its live adapter has changed, episodes that began before keep the old
        one for a while; ``new``: this episode did not begin before.
        """
        state = self.models.get(model)
        if state is None or state.arms or state.kept:
            return False
        return new or time.monotonic() - state.since > self._window

    def has(self, adapter: str) -> bool:
        """Whether an engine has it, up or not."""
        return not self._needs(adapter) or any(adapter in e.loaded for e in self.engines)

    def is_router(self, url: str) -> bool:
        return bool(self.engines) and self.engines[0].router and self.engines[0].url == url

    def servers(self, adapter: str, episode: str, task: str = "", at: str = "") -> list[str]:
        """Engines that can serve this now, the one to take first; empty: none has the adapter and is up. ``task`` and
        ``at``: as ``EngineSelection.pick``. A router comes before the engines that it sends calls to.
        """
        self._learn()
        if not self.trouble:
            able = self._able.get(adapter)
            if able is None:
                able = self._able[adapter] = AbleEngines(self._urls_with(adapter))
            if able.urls and self.is_router(able.urls[0]):
                return able.urls[:TRIED_ENGINES]
            return self.selection.pick(able, episode, task, at)
        urls = self._urls_with(adapter)
        routed = urls[:1] if urls and self.is_router(urls[0]) else []
        rest = urls[len(routed) :]
        good = AbleEngines([url for url in rest if not self._is_doubtful(url)])
        doubtful = AbleEngines([url for url in rest if self._is_doubtful(url)])
        picked = [self.selection.pick(some, episode, task, at) for some in (good, doubtful)]
        return [*routed, *picked[0], *picked[1]]

    def _urls_with(self, adapter: str) -> list[str]:
        need = self._needs(adapter)
        return [e.url for e in self.engines if (not need or adapter in e.loaded) and self._is_up(e)]

    def _needs(self, adapter: str) -> bool:
        """Is this a name that must be loaded first? Nobody knows as long as the control plane has not said anything."""
        return self.known and "@" in adapter and adapter not in self._bases()

    def replacement(self, model: str, adapter: str) -> str:
        """What an episode moves to whose adapter is loaded nowhere."""
        state = self.models.get(model)
        if state is None:
            return adapter
        up = [e for e in self.engines if self._is_up(e)] or self.engines
        for name in (state.live, state.base):
            if name != adapter and (name == state.base or any(name in e.loaded for e in up)):
                return name
        return state.base
