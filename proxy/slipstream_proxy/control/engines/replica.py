"""One engine as the control plane sees it: what it has, what it could not load, why it takes no adapters."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import PurePath

from slipstream.contract import AdapterUse
from slipstream.engines import DEFAULT_ENGINE
from slipstream.engines.engine import (
    Engine,
    EngineFacts,
    EngineSampling,
    NoAdapters,
)
from slipstream_proxy.json_types import JsonObject

MOST_RELOAD_REST_S = 5.0
"""Seconds after which an adapter that an engine lacks is loaded again at the latest."""


@dataclass(frozen=True, slots=True)
class AdapterOutage:
    """Why an engine takes no adapters. No adapter is refused for it, and agents are served without."""

    cause: NoAdapters
    fix: str
    since: float = field(default_factory=time.time)

    @property
    def what(self) -> str:
        return self.cause.what

    def public(self) -> JsonObject:
        return {"cause": self.cause.value, "since": self.since, "text": self.what, "fix": self.fix}


class EngineRefused(Exception):
    """The engine answered and said no (4xx): one vote against the adapter."""


class EngineLacks(Exception):
    """The engine does not find the adapter's files, or does not know it after it has loaded it. That says nothing about
    the adapter: it is this engine's outage.
    """

    def __init__(self, text: str, fix: str) -> None:
        super().__init__(text)
        self.fix = fix


class EngineFailed(Exception):
    """The engine answered 5xx: worth another try while it is healthy."""


class EngineTakesNone(Exception):
    """It takes no adapters at all: ``EngineReplica.outage`` says why."""


@dataclass(slots=True)
class FailedLoad:
    """Of one adapter in one engine, since it last had it. ``since`` is in seconds since the epoch, ``again`` is
    monotonic: it is not asked for before.
    """

    error: Exception
    since: float = field(default_factory=time.time)
    began: float = field(default_factory=time.monotonic)
    lasted: float = 0.0
    """Seconds from the first failure to the latest."""
    again: float = 0.0

    def repeat(self, error: Exception) -> None:
        now = time.monotonic()
        self.error, self.lasted = error, now - self.began
        self.again = now + min(max(0.4, self.lasted / 4), MOST_RELOAD_REST_S)

    def votes(self, patience: float) -> bool:
        """Whether it counts against the adapter: the engine said no, or answered 5xx for longer than ``patience``."""
        if isinstance(self.error, EngineFailed):
            return self.lasted > patience
        return isinstance(self.error, EngineRefused)


@dataclass(slots=True)
class EngineReplica:
    """One server. ``ok``: it answers and has every adapter that may be sent to it, or takes none at all."""

    url: str
    ok: bool = False
    healthy: bool = False
    answered: bool = False
    """It was up once, since this process has known it."""
    loaded: set[str] = field(default_factory=set)
    server: Engine = DEFAULT_ENGINE
    """Of which kind it is."""
    title: str = ""
    """How it calls itself; empty: it has not said yet."""
    facts: EngineFacts = field(default_factory=EngineFacts)
    sampling: EngineSampling | None = None
    """What it samples with where a call says nothing; None: it has not said yet."""
    use: AdapterUse = field(default_factory=AdapterUse)
    """Of the proxy's own adapters, or of its tenant's, as the engine counts."""
    error: str | None = None
    outage: AdapterOutage | None = None
    """Why it takes no adapters."""
    turns: int = 0
    """Loads and unloads so far: what it listed before one is out of date."""
    failed: dict[str, FailedLoad] = field(default_factory=dict)
    """Adapters that it was to have and has not."""
    several: tuple[str, ...] | None = None
    """Servers that answer at its address, as far as that shows; empty: one. None: not looked yet."""
    effective: set[str] = field(default_factory=set)
    """Shapes of adapters (``effect.shape_of``) that it was seen to use since it was started."""
    replaced: set[str] = field(default_factory=set)
    """Names that another proxy's adapter had here, until ours took its place."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One load at a time: the health loop and a swap may want the same adapter."""

    def public(self) -> JsonObject:
        sampling = self.sampling or EngineSampling(known=False)
        known: JsonObject = {"packed": self.facts.packed, "parses": self.facts.parses, "sampling": sampling.values}
        known |= {"sampling_known": sampling.known, "raw_logprobs": sampling.raw}
        known |= {"kind": self.server.kind, "kind_known": bool(self.title), "routes": list(self.facts.routes)}
        return {"url": self.url, "ok": self.ok, "loaded": sorted(self.loaded), "router": False, **known}

    def told(self) -> JsonObject:
        """For people: with what is wrong."""
        outage = self.outage.public() if self.outage else None
        lacks = {name: str(failed.error) for name, failed in self.failed.items()}
        said: JsonObject = {"title": self.title, "answered": self.answered, "error": self.error}
        return {**self.public(), **said, "outage": outage, "lacks": lacks}


def same(root: str | None, *paths: str) -> bool:
    """Whether a loaded adapter (``root`` of ``/v1/models``) came from one of ``paths``. None is believed."""
    return root is None or any(PurePath(root) == PurePath(path) for path in paths)
