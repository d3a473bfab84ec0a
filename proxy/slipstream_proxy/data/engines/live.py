"""What is live: engines, adapters and arms, as the control plane tells it or as it stood in ``live.json`` last."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from slipstream.config import Config
from slipstream_proxy.json_types import JsonObject

log = logging.getLogger(__name__)


@dataclass(slots=True)
class EngineView:
    url: str
    ok: bool = True
    loaded: frozenset[str] = frozenset()
    packed: bool = False
    """It has Slipstream's plugin."""


@dataclass(slots=True)
class ModelView:
    base: str
    live: str
    arms: list[tuple[str, str, float]] = field(default_factory=list)


class LiveView:
    """``connected``: the control plane's stream is up. Without it the last state serves on."""

    def __init__(self, config: Config) -> None:
        name = config.model_name
        self.engines = [EngineView(u.rstrip("/")) for u in config.engine.urls]
        self.models: dict[str, ModelView] = {name: ModelView(name, name)}
        self.connected = False
        self.known = False
        self.held_until: float | None = None
        """The trainer has the engine's GPU until then (seconds since the epoch), or until the control plane says
        otherwise.
        """
        self.changed: Callable[[], None] = lambda: None
        """Called after each update."""
        self.version = 0
        self.packed = False
        """Every engine has Slipstream's plugin. (A call is asked for before its engine is chosen.)"""
        self.down: dict[str, float] = {}
        """Engines that did not answer a call → until when they are asked last."""
        self._file = config.root / "live.json"
        self._read_file()

    def _read_file(self) -> None:
        try:
            self.update(json.loads(self._file.read_text()))
        except OSError:
            return
        except Exception as e:
            log.warning("live.json cannot be read: %s", e)
            return
        for engine in self.engines:
            engine.ok = True  # what was down then need not be down now

    def update(self, state: JsonObject) -> None:
        """Take over a state as INTERNAL routes send it; raises at a malformed one and then changes nothing."""
        engines = [
            EngineView(str(e["url"]).rstrip("/"), bool(e["ok"]), frozenset(e.get("loaded", ())), bool(e.get("packed")))
            for e in state.get("engines", ())
        ]
        models = {
            str(name): ModelView(
                str(m["base"]), str(m["live"]), [(str(a), str(b), float(c)) for a, b, c in m.get("arms", ())]
            )
            for name, m in state.get("models", {}).items()
        }
        held = state.get("hold")
        until = float(held["until"]) if held else None
        if engines:
            self.engines = engines
            self.packed = all(e.packed for e in engines)
        if models:
            self.models = models
        self.held_until = until
        self.known = True
        self.version += 1
        self.changed()

    @property
    def ready(self) -> bool:
        return any(e.ok and not self._is_down(e.url) for e in self.engines)

    def mark_down(self, url: str, seconds: float = 2.0) -> None:
        self.down[url] = time.monotonic() + seconds

    def mark_up(self, url: str) -> None:
        if self.down:
            self.down.pop(url, None)

    def _is_down(self, url: str) -> bool:
        until = self.down.get(url)
        return until is not None and until > time.monotonic()

    def _bases(self) -> set[str]:
        return {m.base for m in self.models.values()}

    def decide(self, model: str, key: str, episode: str) -> tuple[str, str]:
        """(adapter, arm) of a new episode while the control plane is away: by hash, so that every worker says the
        same.
        """
        state = self.models.get(model)
        if state is None:
            return model, "live"
        at = int.from_bytes(hashlib.blake2b(f"{key}\0{episode}".encode(), digest_size=8).digest(), "big") / 2**64
        for name, arm, share in state.arms:
            if at < share:
                return name, arm
            at -= share
        return state.live, "live"

    def servers(self, adapter: str, episode: str) -> list[str]:
        """Engines that can serve this now, the episode's own first; empty: none has the adapter."""
        if len(self.engines) == 1 and not (self.known and "@" in adapter):
            return [self.engines[0].url]
        need = self._needs(adapter)
        able = [e for e in self.engines if not need or adapter in e.loaded]
        if len(able) == 1:
            return [able[0].url]
        good = [e for e in able if e.ok and not self._is_down(e.url)]
        rest = [e for e in able if not (e.ok and not self._is_down(e.url))]
        return [e.url for e in (*_ranked(good, episode), *_ranked(rest, episode))]

    def _needs(self, adapter: str) -> bool:
        """Is this a name that must be loaded first? Nobody knows as long as the control plane has not said anything."""
        return self.known and "@" in adapter and adapter not in self._bases()

    def replacement(self, model: str, adapter: str) -> str:
        """What an episode moves to whose adapter is loaded nowhere."""
        state = self.models.get(model)
        if state is None:
            return adapter
        for name in (state.live, state.base):
            if name != adapter and (name == state.base or any(name in e.loaded for e in self.engines)):
                return name
        return state.base


def _ranked(engines: list[EngineView], episode: str) -> list[EngineView]:
    """Rendezvous hashing: an engine that comes or goes moves only its own episodes."""
    return sorted(engines, key=lambda e: hashlib.blake2b(f"{e.url}\0{episode}".encode(), digest_size=8).digest())
