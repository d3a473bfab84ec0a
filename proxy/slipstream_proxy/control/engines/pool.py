"""The inference engines: which answer, what each has loaded, and what each refuses."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import aiohttp
from pydantic import ValidationError

from slipstream.config import Config
from slipstream.contract import AdapterUse
from slipstream.engines import detect
from slipstream.engines.engine import (
    EngineAnswer,
    EngineAway,
    EngineQuestion,
    Found,
    NoAdapters,
    Reading,
    Steps,
    ask_in_loop,
    changed_on_the_way,
    reading,
)
from slipstream.settings.engine import EngineConfig
from slipstream.shared.discovery import is_source
from slipstream.shared.tenant_names import engine_name, own_name
from slipstream.shared.urls import authorization
from slipstream_proxy.answers import whole_answer
from slipstream_proxy.control.engines.discovery import EngineDiscovery
from slipstream_proxy.control.engines.effect import WITHOUT_EFFECT, changes, question, shape_of, twin_of
from slipstream_proxy.control.engines.replica import (
    AdapterOutage,
    EngineFailed,
    EngineLacks,
    EngineRefused,
    EngineReplica,
    EngineTakesNone,
    FailedLoad,
    same,
)
from slipstream_proxy.control.shared.threads import end, in_thread
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.process.settings_file import SettingsNews

log = logging.getLogger(__name__)
FORGOTTEN_FAILURE_S = 10.0
"""Seconds after which nobody speaks any more of a failed load of an adapter that is not wanted."""
STARTING_INTERVAL_S = 0.5
"""Seconds between two checks while an engine has never answered."""
CHECK_PATIENCE_S = 5.0
"""Seconds that a round of checks waits for a slow engine."""
ONE_SERVER_QUESTIONS = 4
FETCH_VARIABLE = "SLIPSTREAM_ENGINE_ADAPTERS_FROM"
"""Environment of an engine with the plugin: the proxy from which it fetches adapters."""
LOAD_GRACE_S, HALF_GRACE_S = 0.5, 3.0
"""Seconds that a load may take longer in some engines than in most, or in half of them. Then these serve without."""
SAMPLING_TIMEOUT = 20.0
"""Seconds for all questions on an engine's own sampling."""


async def _fits(_: str) -> str | None:
    return None


def _none(_: str) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class OwnAdapters:
    """What the pool asks about the proxy's own adapters, each time anew."""

    wanted: Callable[[], dict[str, str]] = dict
    """Those that each engine must have before it is ``ok``: name → path as vLLM sees it."""
    known: Callable[[str], tuple[str, ...]] = _none
    """The paths that an engine may have a name from; none if it is not ours."""
    hidden: Callable[[], AbstractSet[str]] = frozenset
    """Those that no agent may meet yet, not even by their names."""
    unfit: Callable[[str], Awaitable[str | None]] = _fits
    """Why one may not be loaded from its folder, asked before each load; None: it may."""


class EnginePool:
    def __init__(self, config: Config, own: OwnAdapters = OwnAdapters(), news: SettingsNews | None = None) -> None:
        """``news``: whether ``engine.urls`` and ``engine.router`` are others by now."""
        engine = config.engine
        self.own, self.news = own, news
        self._tenant = config.tenant
        self.router, self.session_header = engine.router, engine.session_header
        self._router_checked: tuple[frozenset[str], str] | None = None
        """The engines that were up when the router was looked at, and the model that it was asked of."""
        self.rewrites: str | None = None
        """What the router makes of a request. None: nothing, as far as that shows."""
        self.kind, self.model, self.patience = engine.kind, config.model_name, config.adapters.patience
        self.discovery = EngineDiscovery(list(dict.fromkeys(u.rstrip("/").removesuffix("/v1") for u in engine.urls)))
        self.engines = [EngineReplica(u) for u in self.discovery.urls if not is_source(u)]
        self.headers = {"authorization": f"Bearer {engine.api_key}"} if engine.api_key else {}
        self.logins = engine.logins
        self.refused: dict[str, str] = {}
        """Wanted adapters that the engines said no to when they were to load them again: name → why."""
        self._loads: dict[tuple[str, str], asyncio.Task[None]] = {}
        """(Engine, adapter) → its load under way. Nobody waits for one that takes much longer than the others."""
        self._checks: dict[str, asyncio.Task[None]] = {}
        self.interval = engine.health_interval
        self.session: aiohttp.ClientSession | None = None
        self.restarts = 0
        self.awake = asyncio.Event()
        """Cleared while the engines sleep or fall asleep. Then nothing is loaded, and silence is no failure."""
        self.awake.set()
        self.watchers: list[Callable[[], None]] = []
        """Called where something changed that data planes have to know: an engine has lost adapters, and to load them
        again may take minutes.
        """
        self.up_since = math.inf if self.engines else 0.0
        """When the first engine was up first (monotonic)."""
        self.replays = False
        """A replay uses their idle time, so it has to be told of each call of an agent as it comes."""

    def changed(self) -> None:
        """Tell the watchers."""
        for watch in self.watchers:
            watch()

    async def start(self) -> None:
        connector = aiohttp.TCPConnector(limit=64)
        self.session = aiohttp.ClientSession(headers=self.headers, connector=connector, trust_env=False)

    async def stop(self) -> None:
        await end([*self._loads.values(), *self._checks.values()])
        if self.session:
            await self.session.close()

    def name_at(self, adapter: str) -> str:
        """What engines know it by."""
        return engine_name(adapter, self._tenant)

    @property
    def pause(self) -> float:
        """Seconds between two rounds of checks. An engine that starts is waited for more closely."""
        starting = any(not e.answered for e in self.engines)
        return min(self.interval, STARTING_INTERVAL_S) if starting else self.interval

    def healthy(self) -> list[EngineReplica]:
        return [e for e in self.engines if e.healthy]

    async def busy(self) -> bool:
        """Whether one of the engines that are up has a request, as far as they say."""
        for engine in self.healthy():
            with contextlib.suppress(EngineAway):
                if any(await self.open_requests(engine, timeout=2.0) or ()):
                    return True
        return False

    async def open_requests(self, engine: EngineReplica, timeout: float = 10.0) -> tuple[float, float] | None:
        """(Running, waiting) requests. None: it does not say."""
        status, _, text = await self.ask("GET", f"{engine.url}/metrics", timeout=timeout)
        return engine.server.open_requests(text) if status == 200 else None

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
        """Adapters in every engine that is up, and takes adapters if any does. One that lacks an adapter that others
        have is named in ``status``, and does not count.
        """
        up = self.takers() or self.healthy()
        some = {name for e in up for name in e.loaded}
        return {name for name in some if all(name in e.loaded or name in e.failed for e in up)}

    def refusal(self, name: str) -> str | None:
        """Why an adapter is refused: most of the engines of one version say no to it, and those of none have it. None:
        it is not. What an engine lacks, or cannot answer now, counts neither way.
        """
        said: list[str] = []
        versions = {e.title for e in self.takers()}
        for version in versions:
            alike = [e for e in self.takers() if e.title == version]
            failed = [f for e in alike if name not in e.loaded and (f := e.failed.get(name)) is not None]
            no = [str(f.error) for f in failed if f.votes(self.patience)]
            if sum(name in e.loaded for e in alike) * 2 >= len(alike):
                return None
            if len(no) * 2 > len(alike):
                said += no
        return said[0] if said else None

    def public(self) -> list[JsonObject]:
        """For the data planes. What an engine that is down had loaded keeps no call waiting if the others take none."""
        forget, hidden = self.none_takes(), self.own.hidden()
        engines = [
            {**e.public(), "loaded": [] if forget and not e.healthy else sorted(e.loaded - hidden)}
            for e in self.engines
        ]
        return [*self._routed(engines), *engines] if self.router else engines

    def _routed(self, engines: list[JsonObject]) -> list[JsonObject]:
        """The router as the data planes see it: it has what every engine has that it may send a call to."""
        up = [e for e in engines if e["ok"]] or engines
        has = set.intersection(*(set(e["loaded"]) for e in up)) if up else set()
        facts = {**up[0], "packed": all(e["packed"] for e in up), "parses": any(e["parses"] for e in up)} if up else {}
        ok = any(e["ok"] for e in engines)
        return [{**facts, "url": self.router, "ok": ok, "loaded": sorted(has), "router": True}]

    async def ask(
        self,
        method: str,
        url: str,
        body: JsonObject | None = None,
        timeout: float = 10.0,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any, str]:
        assert self.session is not None
        try:
            most, login = aiohttp.ClientTimeout(total=timeout), authorization(url, None, self.logins)
            login |= headers or {}
            asked = self.session.request(method, url, json=body, timeout=most, headers=login, allow_redirects=False)
            async with asked as response:
                if 300 <= response.status < 400:
                    why = "which is never followed: name the address that answers in engine.urls"
                    raise EngineAway(f"{url}: it redirects (status {response.status}), {why}")
                text = (await whole_answer(response)).decode("utf-8", "replace")
                try:
                    read = json.loads(text) if text.strip() else None
                except (ValueError, RecursionError):
                    read = None
                return response.status, read, text
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            raise EngineAway(f"{url}: {e or type(e).__name__}") from e

    async def tell(self, engine: EngineReplica, question: EngineQuestion) -> EngineAnswer:
        """Raises ``EngineAway``."""
        method, path, body, timeout = question
        return EngineAnswer(*await self.ask(method, engine.url + path, body, timeout))

    async def run(self, engine: EngineReplica, steps: Steps[Found]) -> Found:
        """Ask all that the steps ask. Raises ``EngineAway``."""
        return await ask_in_loop(steps, lambda question: self.tell(engine, question))

    async def models(self, engine: EngineReplica) -> dict[str, str | None]:
        """Name → path that it came from, of what the engine serves, without other tenants' adapters."""
        status, read, text = await self.ask("GET", f"{engine.url}/v1/models")
        if status != 200 or not isinstance(read, dict):
            raise EngineFailed(f"/v1/models answered {status}: {text[:200]}")
        found = {str(m["id"]): m.get("root") for m in read.get("data", []) if isinstance(m, dict) and "id" in m}
        return {own: root for name, root in found.items() if (own := own_name(name, self._tenant)) is not None}

    async def load(self, engine: EngineReplica, name: str, path: str, folder: Path | None = None) -> None:
        """Load and warm up. ``folder``: a new adapter's, as this process sees it; it must change what the engine
        computes. Raises ``Refused``, ``Lacks``, ``Failed``, ``Away`` or ``TakesNone``.
        """
        try:
            async with self._turn(engine):
                if name not in engine.loaded:
                    if why := await self.own.unfit(name):
                        raise EngineRefused(why)
                    await self._put(engine, name, path)
                shape = await in_thread(shape_of, folder) if folder is not None else None
                asked = None if shape in engine.effective else folder
                reading = [] if asked is None else [self._read(engine, None)]
                _, *base = await asyncio.gather(self.warm(engine, name), *reading)
                await self._expect_one_server(engine, name)
                if asked is not None:
                    seen = await self._has_effect(engine, name, path, asked, *base)
                    if seen is False:
                        await self._unload(engine, name)
                        raise EngineRefused(WITHOUT_EFFECT)
                    if seen and shape is not None:
                        engine.effective.add(shape)
                engine.loaded.add(name)
                engine.turns += 1
                engine.failed.pop(name, None)
        except (EngineRefused, EngineLacks, EngineFailed, EngineAway) as e:
            if engine.failed.setdefault(name, FailedLoad(e)).error is e:
                log.error("engine %s: %s cannot be loaded: %s", engine.url, name, e)
            engine.failed[name].repeat(e)
            raise

    async def load_all(self, name: str, path: str, folder: Path | None = None) -> list[BaseException]:
        """Load into every engine that is up and takes adapters. → What went wrong, an error for each of them that does
        not have it now. One that turns out to take none counts no more. Where half of them have it, the others are
        waited for no longer than ``HALF_GRACE_S``; their loads go on.
        """
        engines = self.takers()
        now, errors = time.monotonic(), list[BaseException]()
        loads: dict[asyncio.Task[None], EngineReplica] = {}
        for engine in engines:
            failed = engine.failed.get(name)
            if failed is not None and failed.again > now and name not in engine.loaded:
                errors.append(failed.error)
            else:
                loads[self._begin(engine, name, path, folder)] = engine
        pending, patience = set(loads), None
        while pending:
            done, pending = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            have = sum(name in e.loaded for e in engines) * 2
            if have >= len(engines):
                patience = LOAD_GRACE_S if have > len(engines) else HALF_GRACE_S
        for load, engine in loads.items():
            if load in pending:
                errors.append(EngineAway(f"{engine.url} still loads {name}"))
            elif not load.cancelled() and (error := load.exception()) is not None:
                errors.append(error)
        return [e for e in errors if not isinstance(e, EngineTakesNone)]

    def _begin(self, engine: EngineReplica, name: str, path: str, folder: Path | None) -> asyncio.Task[None]:
        """The load under way, or a new one."""
        at = engine.url, name
        load = self._loads.get(at)
        if load is None:
            load = self._loads[at] = asyncio.create_task(self.load(engine, name, path, folder), name=f"load {name}")
            load.add_done_callback(lambda done: self._ended(at, done))
        return load

    def _ended(self, at: tuple[str, str], load: asyncio.Task[None]) -> None:
        self._loads.pop(at, None)
        if not load.cancelled() and load.exception() is None:
            self.changed()

    async def try_out(self, name: str, path: str, folder: Path) -> list[BaseException]:
        """Load an adapter, see that it changes something, and unload it again. → As ``load_all``."""
        try:
            return await self.load_all(name, path, folder)
        finally:
            await self.unload(name)

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
        one = engine.server.completion(self.name_at(name), {"prompt": "a", "max_tokens": 1, "temperature": 0})
        status, _, text = await self.tell(engine, one)
        if status == 404:
            engine.several = engine.several or (engine.url,)
            raise EngineLacks(f"it was loaded, and a call of it answered 404: {text[:500]}", self._several_fix(engine))
        if status != 200:
            raise self._error(status, f"a call of it answered {status}: {text[:500]}")

    async def _expect_one_server(self, engine: EngineReplica, name: str) -> None:
        """A router or a Service may have sent the load to one server and the next call to another. Asked once after
        each start. Raises ``Lacks``.
        """
        if engine.several is not None:
            return
        for n in range(ONE_SERVER_QUESTIONS):
            asked = engine.server.completion(self.name_at(name), {"prompt": f"{n}", "max_tokens": 1, "temperature": 0})
            login = {"connection": "close", self.session_header: f"slipstream-{n}"}
            status, _, text = await self.ask(asked.method, engine.url + asked.path, asked.body, asked.timeout, login)
            if status == 404:
                engine.several = (engine.url,)
                raise EngineLacks(
                    f"one call of it was answered, and the next with 404: {text[:200]}", self._several_fix(engine)
                )
        engine.several = ()

    @staticmethod
    def _several_fix(engine: EngineReplica) -> str:
        several = [url for url in engine.several or () if url != engine.url]
        names = ", ".join(f'"{url}"' for url in several) or "the address of each engine behind it"
        return f'set engine.urls = [{names}] and engine.router = "{engine.url}"'

    async def _has_effect(
        self, engine: EngineReplica, name: str, path: str, folder: Path, base: Reading | None
    ) -> bool | None:
        """Whether the engine answers otherwise with the adapter, or with its louder twin, than the base model did
        (``base``) and does now. None: it cannot be seen.
        """
        found, again = await asyncio.gather(self._read(engine, name), self._read(engine, None))
        if base is None or found is None or again is None:
            return None
        if changes(base, found, again):
            return True
        with twin_of(folder, name) as twin:
            if twin is None:
                return None
            status, _, text = await self._load(engine, twin.name, str(PurePath(path).parent / twin.name))
            if status != 200:
                said = f"load_lora_adapter answered {status} for its twin: {text[:500]}"
                raise self._lacks(engine, EngineAnswer(status, None, text), twin.name, str(twin)) or self._error(
                    status, said
                )
            try:
                found, again = await asyncio.gather(self._read(engine, twin.name), self._read(engine, None))
            finally:
                await self._unload(engine, twin.name)
        return None if found is None or again is None else changes(base, found, again)

    async def _read(self, engine: EngineReplica, name: str | None) -> Reading | None:
        """Log-probabilities with an adapter, or of the base model."""
        model = name and self.name_at(name)
        status, answer, _ = await self.tell(engine, engine.server.completion(model, question()))
        return reading(answer) if status == 200 else None

    async def _put(self, engine: EngineReplica, name: str, path: str) -> None:
        answer = await self._load(engine, name, path)
        if answer.status == 200:
            return
        there = await self.models(engine)
        if name not in there:
            raise await self._error_of_load(engine, answer, name, path)
        if same(there[name], path, *self.own.known(name)):
            return  # a name is one adapter for ever: loaded before is loaded
        # of a proxy whose store is not ours: its weights are not what our trainer made
        other = f"{engine.url} has another adapter named {name}, of {there[name]}"
        if name in engine.replaced:
            raise EngineRefused(f"{other}, again: two proxies with stores of their own share this engine")
        log.warning("%s: ours takes its place", other)
        status, _, text = await self._unload(engine, name)
        if status not in (200, 404):
            raise EngineRefused(f"{other}, and it cannot be unloaded ({status}: {text[:200]}): restart the engine")
        engine.replaced.add(name)
        answer = await self._load(engine, name, path)
        if answer.status != 200:
            raise await self._error_of_load(engine, answer, name, path)

    async def _load(self, engine: EngineReplica, name: str, path: str) -> EngineAnswer:
        return await self.tell(engine, engine.server.load(self.name_at(name), path))

    async def _unload(self, engine: EngineReplica, name: str) -> EngineAnswer:
        return await self.tell(engine, engine.server.unload(self.name_at(name)))

    async def _error_of_load(self, engine: EngineReplica, answer: EngineAnswer, *asked: str) -> Exception:
        """Of the engine, if it takes no adapters; else of this adapter."""
        said = f"load_lora_adapter answered {answer.status}: {answer.text[:500]}"
        if (cause := engine.server.why_none(answer, asked)) is not None:
            await self._note(engine, cause)
            return EngineTakesNone(said)
        return self._lacks(engine, answer, *asked) or self._error(answer.status, said)

    def _lacks(self, engine: EngineReplica, answer: EngineAnswer, *asked: str) -> EngineLacks | None:
        """What it answers where it cannot read the files. None: they are there."""
        if not engine.server.lacks_files(answer, asked):
            return None
        fix = f"mount adapters.dir so that it sees {asked[-1]} (engine.adapters_dir), or start it with {FETCH_VARIABLE}"
        return EngineLacks(f"load_lora_adapter answered {answer.status}: {answer.text[:500]}", fix)

    async def _note(self, engine: EngineReplica, cause: NoAdapters | None, *, fresh: bool = False) -> None:
        """Keep whether the engine takes adapters. ``fresh``: it may be another server than before. An outage lasts
        since the one before began.
        """
        before = engine.outage
        if cause is None:
            engine.outage = None
            if before is not None:
                log.info("engine %s takes adapters again", engine.url)
        elif fresh or before is None or before.cause is not cause:
            fix = await self.run(engine, engine.server.adapters_fix(cause))
            now = AdapterOutage(cause, fix) if before is None else replace(before, cause=cause, fix=fix)
            engine.outage = now
            if before is None or before.cause is not cause:
                level = logging.ERROR if engine.server.gives_ids else logging.WARNING
                log.log(level, "engine %s takes no adapters: %s; %s", engine.url, now.what, now.fix)

    @staticmethod
    def _error(status: int, message: str) -> Exception:
        return EngineRefused(message) if 400 <= status < 500 and status not in (408, 429) else EngineFailed(message)

    async def unload(self, name: str) -> None:
        for engine in self.engines:
            if name not in engine.loaded:
                continue
            try:
                status, _, text = await self._unload(engine, name)
            except EngineAway:
                status, text = 404, ""  # a dead engine has it no more
            if status in (200, 404, 400):
                engine.loaded.discard(name)
                engine.turns += 1
            else:
                log.warning("%s: %s stays loaded (%d): %s", engine.url, name, status, text[:200])

    async def check(self, engine: EngineReplica) -> None:
        """Health and what is loaded. After a restart its adapters are loaded again before it is ``ok``."""
        if not self.awake.is_set():
            return
        serving, turns = engine.ok and engine.outage is not None, engine.turns
        try:
            there = await self._look(engine)
        except (EngineAway, EngineFailed) as e:
            if not engine.answered and engine.error is None:
                log.info("engine %s does not answer yet: %s", engine.url, e)
            elif engine.healthy:
                log.warning("engine %s is down: %s", engine.url, e)
            engine.ok = engine.healthy = False
            engine.error = str(e)
            return
        lost = self._lost(engine, there)
        if lost:
            self.restarts += 1
            log.warning("engine %s has lost its adapters (restarted?): %s", engine.url, ", ".join(sorted(lost)))
        if not engine.healthy:
            log.info("engine %s is up", engine.url)
        engine.healthy, engine.error, engine.answered = True, None, True
        self.up_since = min(self.up_since, time.monotonic())
        await self._count(engine)
        self._forget_failures(engine)
        if not engine.lock.locked() and engine.turns == turns:
            engine.loaded = {n for n, root in there.items() if (paths := self.own.known(n)) and same(root, *paths)}
        missing = {n: p for n, p in self.own.wanted().items() if n not in engine.loaded}
        if not missing or engine.outage is not None:
            engine.ok = True
            return
        serving = serving or (engine.ok and not lost)  # what it has it serves on, while it loads what is new
        engine.ok = serving  # calls that the base model answers need not wait
        self.changed()
        engine.ok = await self._load_again(engine, missing) or (serving and engine.healthy)

    async def _count(self, engine: EngineReplica) -> None:
        """What it says of its slots stays as it was where it does not answer."""
        with contextlib.suppress(EngineAway, ValidationError):
            said = (await self.run(engine, engine.server.adapter_use(engine.facts))).get(self._tenant)
            engine.use = AdapterUse.model_validate(said) if said is not None else engine.use

    def use(self) -> AdapterUse:
        """Of all engines together."""
        counts = [engine.use.model_dump() for engine in self.engines]
        return AdapterUse(**{name: sum(count[name] for count in counts) for name in AdapterUse.model_fields})

    def _forget_failures(self, engine: EngineReplica) -> None:
        """Of adapters that it is no longer to have."""
        wanted, until = self.own.wanted(), time.monotonic() - FORGOTTEN_FAILURE_S
        engine.failed = {
            n: f for n, f in engine.failed.items() if n not in engine.loaded and (n in wanted or f.again > until)
        }

    async def _look(self, engine: EngineReplica) -> dict[str, str | None]:
        """→ Its models. Raises ``Failed`` or ``Away``. What it can do is asked where it may have been started again."""
        if not engine.healthy:
            engine.server, engine.title = await self.run(engine, detect(self.kind, self.model))
        health = EngineQuestion("GET", engine.server.health, None, max(5.0, self.interval))
        status, _, text = await self.tell(engine, health)
        if status != 200:
            raise EngineFailed(f"{health.path} answered {status}: {text[:200]}")
        there = await self.models(engine)
        fresh = not engine.healthy or bool(self._lost(engine, there))
        if fresh:
            found = await self.run(engine, engine.server.replicas())
            engine.several = found if len(found) > 1 else None
            engine.effective.clear()
        if fresh or engine.sampling is None:
            await self._learn(engine, there)
        if fresh or engine.outage is not None:
            before = engine.outage.cause if engine.outage is not None else None
            await self._note(engine, await self.run(engine, engine.server.takes_adapters(before)), fresh=fresh)
        return there

    async def _learn(self, engine: EngineReplica, models: Mapping[str, str | None]) -> None:
        """What an engine can do that may have been started again, and what it samples with where a call says nothing.

        ``models``: as ``/v1/models`` lists them, its own first.
        """
        server = engine.server
        engine.facts = await self.run(engine, server.learn(fresh=not engine.healthy, before=engine.facts))
        if not models:
            return
        model, root = next(iter(models.items()))
        engine.sampling = None  # of the engine before it was started again
        try:
            async with asyncio.timeout(SAMPLING_TIMEOUT):
                found = engine.sampling = await self.run(engine, server.sampling(model, root, engine.facts))
        except (EngineAway, TimeoutError):  # the next check asks again
            log.warning("engine %s did not say yet what it samples with where a call says nothing", engine.url)
            return
        if found.cuts:
            what, fix = found.said(), server.neutral_fix
            log.warning("engine %s samples with %s where a call says nothing; %s", engine.url, what, fix)

    def _lost(self, engine: EngineReplica, there: Container[str]) -> set[str]:
        """Wanted adapters that it had and does not have any more."""
        return {name for name in engine.loaded & self.own.wanted().keys() if name not in there}

    async def _load_again(self, engine: EngineReplica, missing: dict[str, str]) -> bool:
        """→ Whether calls may go there: it has them all now, or serves what it has: it takes no adapters, lacks these
        files, or says no to what other engines have.
        """
        now, serves = time.monotonic(), True
        for name, path in missing.items():
            failed = engine.failed.get(name)
            try:
                if failed is not None and failed.again > now:
                    raise failed.error
                await self._begin(engine, name, path, None)
            except EngineTakesNone:
                return True
            except EngineLacks:
                continue
            except (EngineRefused, EngineFailed, EngineAway) as e:
                engine.error = f"{name}: {e}"
                if (why := self.refusal(name)) is not None:
                    self.refused[name] = why
                serves &= isinstance(e, EngineRefused) and name not in self.refused
        return serves

    async def check_router(self) -> None:
        """Whether the router changes requests, or refuses a version that the engines have: asked again where one came
        or went. Some routers know the models alone that an engine had at first.
        """
        up = self.healthy()
        if self.router is None or not up or not self.awake.is_set():
            return
        engine, shared = up[0], set.intersection(*(e.loaded for e in up)) - self.own.hidden()
        about = max(shared, default=self.model)
        look = frozenset(e.url for e in up), about
        if look == self._router_checked:
            return
        asked = engine.server.telling_chat(self.name_at(about))
        if asked is None:
            return
        try:
            direct = await self.tell(engine, asked)
        except EngineAway:
            return
        try:
            routed = EngineAnswer(*await self.ask(asked.method, self.router + asked.path, asked.body, asked.timeout))
        except EngineAway as e:
            self.rewrites = f"it does not answer: {e}"
            return
        self._router_checked = look
        before, self.rewrites = self.rewrites, changed_on_the_way(direct, routed)
        if self.rewrites and self.rewrites != before:
            log.warning("engine.router %s: %s", self.router, self.rewrites)

    def _looked(self, url: str, _: asyncio.Task[None]) -> None:
        self._checks.pop(url, None)

    async def _discover(self) -> None:
        """Take over which engines there are. What is known of those that stay stays."""
        if self.news is not None and self.news.look():
            self._use(self.news.config.engine)
        found = await self.discovery.look()
        if found is None or found == [e.url for e in self.engines]:
            return
        there = {e.url: e for e in self.engines}
        for url in there.keys() - set(found):
            log.info("engine %s is gone: engine.urls, or what it names, has it no more", url)
            if (look := self._checks.pop(url, None)) is not None:
                look.cancel()
        self.engines = [there.get(url) or EngineReplica(url) for url in found]
        self.changed()

    def _use(self, engine: EngineConfig) -> None:
        """Other engines, or another router before them."""
        self.discovery.use(list(dict.fromkeys(engine.urls)))
        if engine.router != self.router:
            self.router, self.rewrites, self._router_checked = engine.router, None, None
            self.changed()

    async def check_all(self) -> None:
        """Each engine. One that is slow holds up nothing: its look goes on, and is not begun again meanwhile."""
        await self._discover()
        for engine in self.engines:
            if engine.url not in self._checks:
                look = self._checks[engine.url] = asyncio.create_task(self.check(engine), name=f"look {engine.url}")
                look.add_done_callback(functools.partial(self._looked, engine.url))
        looks = list(self._checks.values())
        if looks:
            await asyncio.wait(looks, timeout=max(CHECK_PATIENCE_S, self.interval))
        for look in looks:
            if look.done() and not look.cancelled():
                look.result()
        await self.check_router()
