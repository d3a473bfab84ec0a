"""The engines: health, and adapters in and out of them over vLLM's own routes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Container
from typing import Any

import aiohttp

from slipstream.operate.adapter_routes import LOAD, UNLOAD, NoAdapters, cause_of
from slipstream_proxy.control.adapter_outage import outage_of, probe
from slipstream_proxy.control.engine_replica import (
    EngineAway,
    EngineFailed,
    EngineRefused,
    EngineReplica,
    EngineTakesNone,
    same,
)
from slipstream_proxy.json_types import JsonObject

log = logging.getLogger(__name__)
LOAD_TIMEOUT = 120.0
MOST_READ = 16 * 2**20
"""Bytes of an engine's answer to the control plane's own questions."""
PLUGIN_PATH = "/slipstream"
PACKED_VERSION = 1
"""``slipstream_vllm.packing.VERSION`` that the dialects read."""


class EnginePool:
    """``wanted()``: adapters (name → path as vLLM sees it) that each engine must have before it is ``ok``.
    ``known(name)``: the paths that an engine may have one from; none if it is not ours.
    """

    def __init__(
        self,
        urls: list[str],
        api_key: str | None,
        wanted: Callable[[], dict[str, str]],
        known: Callable[[str], tuple[str, ...]],
        interval: float,
    ) -> None:
        self.engines = [EngineReplica(u) for u in dict.fromkeys(u.rstrip("/").removesuffix("/v1") for u in urls)]
        self.headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self.wanted = wanted
        self.known = known
        self.refused: dict[str, str] = {}
        """Wanted adapters that an engine said no to when it was to load them again: name → why."""
        self.interval = interval
        self.session: aiohttp.ClientSession | None = None
        self.restarts = 0
        self.awake = asyncio.Event()
        """Cleared while the engines sleep or fall asleep. Then nothing is loaded, and silence is no failure."""
        self.awake.set()
        self.noticed: Callable[[], None] = lambda: None
        """Called where an engine has lost adapters, before they are loaded again: that may take minutes."""

    async def start(self) -> None:
        connector = aiohttp.TCPConnector(limit=64)
        self.session = aiohttp.ClientSession(headers=self.headers, connector=connector, trust_env=False)

    async def stop(self) -> None:
        if self.session:
            await self.session.close()

    def healthy(self) -> list[EngineReplica]:
        return [e for e in self.engines if e.healthy]

    def takers(self) -> list[EngineReplica]:
        """Engines that are up and take adapters, as far as is known."""
        return [e for e in self.engines if e.healthy and e.outage is None]

    def serves(self, name: str) -> bool:
        """Whether some engine that is up has this adapter."""
        return any(name in e.loaded for e in self.healthy())

    def none_takes(self) -> bool:
        """Whether all engines that are up take no adapters: then calls go to the base model."""
        return bool(self.healthy()) and not self.takers()

    def loaded(self) -> set[str]:
        """Adapters in every engine that is up, and takes adapters if any does."""
        up = self.takers() or self.healthy()
        return set.intersection(*(e.loaded for e in up)) if up else set()

    def public(self) -> list[JsonObject]:
        """For the data planes. What an engine that is down had loaded keeps no call waiting if the others take none."""
        forget = self.none_takes()
        return [{**e.public(), "loaded": []} if forget and not e.healthy else e.public() for e in self.engines]

    async def ask(
        self, method: str, url: str, body: JsonObject | None = None, timeout: float = 10.0
    ) -> tuple[int, Any, str]:
        assert self.session is not None
        try:
            async with self.session.request(
                method, url, json=body, timeout=aiohttp.ClientTimeout(total=timeout)
            ) as response:
                data = b""
                async for part in response.content.iter_any():
                    data += part
                    if len(data) > MOST_READ:
                        raise EngineAway(f"{url}: it answers with more than {MOST_READ} bytes")
                text = data.decode("utf-8", "replace")
                try:
                    read = json.loads(text) if text.strip() else None
                except (ValueError, RecursionError):
                    read = None
                return response.status, read, text
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            raise EngineAway(f"{url}: {e or type(e).__name__}") from e

    async def models(self, engine: EngineReplica) -> dict[str, str | None]:
        """Name → path that it came from, of all that the engine serves."""
        status, read, text = await self.ask("GET", f"{engine.url}/v1/models")
        if status != 200 or not isinstance(read, dict):
            raise EngineFailed(f"/v1/models answered {status}: {text[:200]}")
        return {str(m["id"]): m.get("root") for m in read.get("data", []) if isinstance(m, dict) and "id" in m}

    async def _has_plugin(self, engine: EngineReplica) -> bool:
        """Whether the engine packs ids and log-probabilities in the form that this version reads."""
        status, read, _ = await self.ask("GET", f"{engine.url}{PLUGIN_PATH}")
        return status == 200 and isinstance(read, dict) and read.get("packed") == PACKED_VERSION

    async def _parses(self, engine: EngineReplica) -> bool:
        """False only if it gives ids to a call that hides reasoning: it has no parser then. One token is sampled."""
        hidden = {"include_reasoning": False, "return_token_ids": True, "max_tokens": 1}
        body: JsonObject = {"messages": [{"role": "user", "content": "a"}], **hidden}
        try:
            status, read, _ = await self.ask("POST", f"{engine.url}/v1/chat/completions", body)
        except EngineAway:
            return True  # it is slow to sample: that is for its health check to say
        choices = read.get("choices") if status == 200 and isinstance(read, dict) else None
        return not (choices and choices[0].get("token_ids"))

    async def load(self, engine: EngineReplica, name: str, path: str) -> None:
        """Load and warm up. Raises ``Refused``, ``Failed``, ``Away`` or ``TakesNone``."""
        async with self._turn(engine):
            if name not in engine.loaded:
                await self._put(engine, name, path)
            await self.warm(engine, name)
            engine.loaded.add(name)

    async def load_all(self, name: str, path: str) -> list[BaseException]:
        """Load into every engine that is up and takes adapters. → What went wrong, an error for each of them that does
        not have it now. One that turns out to take none counts no more.
        """
        found = await asyncio.gather(*(self.load(e, name, path) for e in self.takers()), return_exceptions=True)
        return [e for e in found if isinstance(e, BaseException) and not isinstance(e, EngineTakesNone)]

    @contextlib.asynccontextmanager
    async def _turn(self, engine: EngineReplica) -> AsyncIterator[None]:
        """The engine's lock, once it is awake."""
        while True:
            await self.awake.wait()
            async with engine.lock:
                if self.awake.is_set():
                    yield
                    return

    async def warm(self, engine: EngineReplica, name: str) -> None:
        """One token: the first call with an adapter compiles and copies, which no agent should wait for."""
        body = {"model": name, "prompt": "a", "max_tokens": 1, "temperature": 0}
        status, _, text = await self.ask("POST", f"{engine.url}/v1/completions", body, LOAD_TIMEOUT)
        if status != 200:
            raise self._error(status, f"a call of it answered {status}: {text[:500]}")

    async def _put(self, engine: EngineReplica, name: str, path: str) -> None:
        status, text = await self._load(engine, name, path)
        if status == 200:
            return
        there = await self.models(engine)
        if name not in there:
            raise await self._error_of_load(engine, status, text, name, path)
        if same(there[name], path, *self.known(name)):
            return  # a name is one adapter for ever: loaded before is loaded
        # of a proxy whose store is not ours: its weights are not what our trainer made
        other = f"{engine.url} has another adapter named {name}, of {there[name]}"
        if name in engine.replaced:
            raise EngineRefused(f"{other}, again: two proxies with stores of their own share this engine")
        log.warning("%s: ours takes its place", other)
        status, text = await self._unload(engine, name)
        if status not in (200, 404):
            raise EngineRefused(f"{other}, and it cannot be unloaded ({status}: {text[:200]}): restart the engine")
        engine.replaced.add(name)
        status, text = await self._load(engine, name, path)
        if status != 200:
            raise await self._error_of_load(engine, status, text, name, path)

    async def _load(self, engine: EngineReplica, name: str, path: str) -> tuple[int, str]:
        body = {"lora_name": name, "lora_path": path}
        status, _, text = await self.ask("POST", engine.url + LOAD, body, LOAD_TIMEOUT)
        return status, text

    async def _unload(self, engine: EngineReplica, name: str) -> tuple[int, str]:
        status, _, text = await self.ask("POST", engine.url + UNLOAD, {"lora_name": name}, 30.0)
        return status, text

    async def _error_of_load(self, engine: EngineReplica, status: int, text: str, *asked: str) -> Exception:
        """Of the engine, if it takes no adapters; else of this adapter."""
        if (cause := cause_of(status, text, asked)) is not None:
            await self._note(engine, cause)
            return EngineTakesNone(f"load_lora_adapter answered {status}: {text[:500]}")
        return self._error(status, f"load_lora_adapter answered {status}: {text[:500]}")

    async def _note(self, engine: EngineReplica, cause: NoAdapters | None, *, fresh: bool = False) -> None:
        """Keep whether the engine takes adapters. ``fresh``: it may be another vLLM than before."""
        before = engine.outage
        if cause is None:
            engine.outage = None
            if before is not None:
                log.info("engine %s takes adapters again", engine.url)
        elif fresh or before is None or before.cause is not cause:
            plugin = await self._has_plugin(engine)
            now = engine.outage = await outage_of(self.ask, engine.url, cause, before, plugin=plugin)
            if before is None or before.cause is not cause:
                log.error("engine %s takes no adapters: %s; %s", engine.url, now.what, now.fix)

    @staticmethod
    def _error(status: int, message: str) -> Exception:
        return EngineRefused(message) if 400 <= status < 500 and status not in (408, 429) else EngineFailed(message)

    async def unload(self, name: str) -> None:
        for engine in self.engines:
            if name not in engine.loaded:
                continue
            try:
                status, text = await self._unload(engine, name)
            except EngineAway:
                status, text = 404, ""  # a dead engine has it no more
            if status in (200, 404, 400):
                engine.loaded.discard(name)
            else:
                log.warning("%s: %s stays loaded (%d): %s", engine.url, name, status, text[:200])

    async def check(self, engine: EngineReplica) -> None:
        """Health and what is loaded. After a restart its adapters are loaded again before it is ``ok``."""
        if not self.awake.is_set():
            return
        serving = engine.ok and engine.outage is not None
        try:
            there = await self._look(engine)
        except (EngineAway, EngineFailed) as e:
            if engine.healthy or engine.error is None:
                log.warning("engine %s is down: %s", engine.url, e)
            engine.ok = engine.healthy = False
            engine.error = str(e)
            return
        if lost := self._lost(engine, there):
            self.restarts += 1
            log.warning("engine %s has lost its adapters (restarted?): %s", engine.url, ", ".join(sorted(lost)))
        if not engine.healthy:
            log.info("engine %s is up", engine.url)
        engine.healthy, engine.error = True, None
        if not engine.lock.locked():
            engine.loaded = {n for n, root in there.items() if (paths := self.known(n)) and same(root, *paths)}
        missing = {n: p for n, p in self.wanted().items() if n not in engine.loaded}
        if not missing or engine.outage is not None:
            engine.ok = True
            return
        self.noticed()
        engine.ok = serving  # calls that the base model answers need not wait
        engine.ok = await self._load_again(engine, missing)

    async def _look(self, engine: EngineReplica) -> dict[str, str | None]:
        """→ Its models. Raises ``Failed`` or ``Away``. What it can do is asked where it may have been started again."""
        status, _, text = await self.ask("GET", f"{engine.url}/health", timeout=max(5.0, self.interval))
        if status != 200:
            raise EngineFailed(f"/health answered {status}: {text[:200]}")
        there = await self.models(engine)
        if not engine.healthy:
            engine.packed = await self._has_plugin(engine)
            engine.parses = engine.packed or await self._parses(engine)
        fresh = not engine.healthy or bool(self._lost(engine, there))
        if fresh or engine.outage is not None:
            await self._note(engine, await probe(self.ask, engine.url, engine.outage), fresh=fresh)
        return there

    def _lost(self, engine: EngineReplica, there: Container[str]) -> set[str]:
        """Wanted adapters that it had and does not have any more."""
        return {name for name in engine.loaded & self.wanted().keys() if name not in there}

    async def _load_again(self, engine: EngineReplica, missing: dict[str, str]) -> bool:
        """→ Whether calls may go there: it has them all now, or takes no adapters and serves what it has."""
        for name, path in missing.items():
            try:
                await self.load(engine, name, path)
            except EngineTakesNone:
                return True
            except (EngineRefused, EngineFailed, EngineAway) as e:
                engine.error = f"{name}: {e}"
                if isinstance(e, EngineRefused):
                    self.refused[name] = str(e)
                log.error("engine %s: %s cannot be loaded again: %s", engine.url, name, e)
                return False
        return True

    async def check_all(self) -> None:
        await asyncio.gather(*(self.check(e) for e in self.engines))
