"""One engine as the control plane knows it, and how it can fail."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import PurePath

from slipstream_proxy.control.adapter_outage import AdapterOutage
from slipstream_proxy.json_types import JsonObject


class EngineRefused(Exception):
    """The engine answered and said no (4xx)."""


class EngineFailed(Exception):
    """The engine answered 5xx: worth another try while it is healthy."""


class EngineAway(Exception):
    """It did not answer."""


class EngineTakesNone(Exception):
    """It takes no adapters at all: ``EngineReplica.outage`` says why."""


@dataclass(slots=True)
class EngineReplica:
    """One vLLM server. ``ok``: it answers and has every adapter that may be sent to it, or takes none at all."""

    url: str
    ok: bool = False
    healthy: bool = False
    loaded: set[str] = field(default_factory=set)
    packed: bool = False
    """It has Slipstream's plugin, which packs ids and log-probabilities."""
    parses: bool = True
    """It has a reasoning or a tool parser, as far as is known. Without one it hides neither reasoning nor ids."""
    error: str | None = None
    outage: AdapterOutage | None = None
    """Why it takes no adapters."""
    replaced: set[str] = field(default_factory=set)
    """Names that another proxy's adapter had here, until ours took its place."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One load at a time: the health loop and a swap may want the same adapter."""

    def public(self) -> JsonObject:
        known = {"packed": self.packed, "parses": self.parses}
        return {"url": self.url, "ok": self.ok, "loaded": sorted(self.loaded), **known}

    def told(self) -> JsonObject:
        """For people: with what is wrong."""
        return {**self.public(), "error": self.error, "outage": self.outage.public() if self.outage else None}


def same(root: str | None, *paths: str) -> bool:
    """Whether a loaded adapter (``root`` of ``/v1/models``) came from one of ``paths``. None is believed."""
    return root is None or any(PurePath(root) == PurePath(path) for path in paths)
