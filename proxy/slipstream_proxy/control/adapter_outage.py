"""An engine that takes no adapters: what is known of it, and the request that finds out whether it takes them again."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from slipstream.operate.adapter_routes import LOAD, NoAdapters, cause_of, fix_of, what_of
from slipstream_proxy.json_types import Json, JsonObject

PROBE = "slipstream-probe"
ILL = 500
"""From this status on an answer says nothing about routes, where it names no cause."""
Ask = Callable[[str, str, JsonObject | None], Awaitable[tuple[int, Json, str]]]
"""(method, URL, body) → status, JSON, text."""


@dataclass(frozen=True, slots=True)
class AdapterOutage:
    """Why an engine takes no adapters. No adapter is refused for it, and agents are served without."""

    cause: NoAdapters
    fix: str
    since: float = field(default_factory=time.time)

    @property
    def what(self) -> str:
        return what_of(self.cause)

    def public(self) -> JsonObject:
        return {"cause": self.cause.value, "since": self.since, "text": self.what, "fix": self.fix}


async def probe(ask: Ask, url: str, before: AdapterOutage | None) -> NoAdapters | None:
    """Why the engine takes no adapters. None: it has the route, or nothing is known against it.

    What the engine is too ill to answer changes nothing. Raises ``EngineAway`` where it does not answer at all.
    An empty body shows whether there is the route. Only an adapter shows whether LoRA is on. vLLM logs an error for one
    that does not exist, so the probe names one only where LoRA was off.
    """
    path = f"/nonexistent/{PROBE}"
    body: JsonObject = {}
    if before is not None and before.cause is NoAdapters.NO_LORA:
        body = {"lora_name": PROBE, "lora_path": path}
    status, _, text = await ask("POST", url + LOAD, body)
    cause = cause_of(status, text, (PROBE, path))
    return before.cause if cause is None and status >= ILL and before is not None else cause


async def outage_of(
    ask: Ask, url: str, cause: NoAdapters, before: AdapterOutage | None, *, plugin: bool
) -> AdapterOutage:
    """With the fix for this engine. It lasts since the one before began."""
    _, read, _ = await ask("GET", f"{url}/version", None)
    version = str(read.get("version", "")) if isinstance(read, dict) else ""
    fix = fix_of(cause, plugin=plugin, version=version)
    return AdapterOutage(cause, fix) if before is None else replace(before, cause=cause, fix=fix)
