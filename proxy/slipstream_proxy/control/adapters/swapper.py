"""Swaps adapters in the engines: load new, switch, drain, unload old; and the loops that keep them so.

Never ``load_inplace`` and never a name twice: a reused name serves stale prefix-cache KV (vLLM issue #42125;
findings/README.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import shutil
import time
from collections import Counter
from enum import Enum

from slipstream.contract import SERVED_STATES, Adapter, AdapterState
from slipstream.engines.engine import EngineAway
from slipstream.shared.backoff import rest
from slipstream.shared.files import bytes_of
from slipstream_proxy.control.adapters.fleet import Fleet
from slipstream_proxy.control.adapters.journal import AdapterJournal, ConcurrentChange
from slipstream_proxy.control.adapters.lifecycle import AdapterLifecycle
from slipstream_proxy.control.adapters.live_publisher import LivePublisher
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.adapters.rehearsal import RehearsalSlot
from slipstream_proxy.control.adapters.trials import GateTrials
from slipstream_proxy.control.engines.engine_lease import EngineLease
from slipstream_proxy.control.engines.pool import EnginePool
from slipstream_proxy.control.engines.replica import EngineFailed, EngineLacks, EngineRefused
from slipstream_proxy.control.gate.suspicion import is_frozen
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import end, in_thread
from slipstream_proxy.control.storage.store_handle import RETRY_HEADERS, StoreHandle

log = logging.getLogger(__name__)
UNLOAD_GRACE_S = 3.0
"""Seconds between the moment an adapter is no longer served and its unloading: a worker may still hold a pin to it."""
TICK_INTERVAL_S = 0.5
PINS_SHARE, PINS_SHARE_FULL, PINS_CHEAP, PINS_REST = 0.005, 0.25, 0.003, 2.0
"""Counting the open episodes' pins takes at most this share of the time, a larger one while versions hold all slots,
unless a count takes fewer seconds than ``PINS_CHEAP``; the rest after one is at most ``PINS_REST`` seconds, fewer than
``UNLOAD_GRACE_S``."""
FIRST_CHECK = 5.0
MOVE_CAUSES = ("slot", "taken_back", "refused")
"""Causes for which a running episode leaves its adapter. All are counted from the start: an alert asks for them."""
S = AdapterState


class LoadWait(Enum):
    """What a version waits for before it is loaded, with the sentence that says so."""

    REPLAY = "it waits for the replay of {replayed}"
    FROZEN = "it waits: {decided} is frozen, until a person decides"
    VERDICT = "it waits for the verdict on {decided} (gate.pace)"
    SLOT = "it waits for a slot in the engine (engine.max_loras)"


class Swapper:
    def __init__(
        self,
        registry: AdapterRegistry,
        trials: GateTrials,
        journal: AdapterJournal,
        lifecycle: AdapterLifecycle,
        fleet: Fleet,
        engines: EnginePool,
        lease: EngineLease,
        publisher: LivePublisher,
        stores: StoreHandle,
        rehearsals: RehearsalSlot | None = None,
    ) -> None:
        self.rehearsals = rehearsals or RehearsalSlot()
        self.registry, self.trials, self.journal = registry, trials, journal
        self.lifecycle, self.fleet = lifecycle, fleet
        self.engines, self.lease, self.publisher, self.stores = engines, lease, publisher, stores
        self.config = registry.config
        self.grace = UNLOAD_GRACE_S
        self.draining: dict[str, float] = {}
        self.superseded: dict[str, float] = {}
        """Adapter that only running episodes have → since when (monotonic)."""
        self.moves = Counter(dict.fromkeys(MOVE_CAUSES, 0))
        """Cause → running episodes that changed their adapter."""
        self._tidied: tuple[int, frozenset[str]] | None = None
        """What the last look for files to delete saw: nothing can have come since if this is the same."""
        self._counted, self._count_took = -math.inf, 0.0
        """When the pins were counted last (monotonic), and seconds that it took."""
        self._gone: set[str] = set()
        """Finished adapters that have no files any more."""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.engines.start()
        await self._pins()
        self.lease.start()
        # before anybody learns of it: a control plane that restarts must not report a healthy engine as down
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.engines.check_all(), FIRST_CHECK)
        self.publisher.publish()
        self._tasks = [
            asyncio.create_task(self._health(), name="health"),
            asyncio.create_task(self._run(), name="swap"),
        ]

    async def stop(self) -> None:
        await end(self._tasks)
        await self.lease.stop()
        await self.engines.stop()

    async def _health(self) -> None:
        while True:
            try:
                await self.engines.check_all()
                await self.lease.rouse()
                self.publisher.publish()
                self.journal.wake.set()
            except Exception:
                log.exception("the health check failed")
            await asyncio.sleep(self.engines.pause)

    async def _run(self) -> None:
        wake = self.journal.wake
        while True:
            wake.clear()
            try:
                await self.tick()
            except ConcurrentChange:
                await asyncio.sleep(0.1)
            except Exception:
                log.exception("swapping failed; trying again")
                await asyncio.sleep(TICK_INTERVAL_S)
            await rest(TICK_INTERVAL_S, wake)

    async def tick(self) -> None:
        """One look at what should be loaded and what is."""
        await self.fleet.follow()
        counted_lately = time.monotonic() - self._counted < PINS_REST
        if not counted_lately or self.is_full() or not self.registry.in_state(S.LOADING):
            await self._pins()  # else a version that has its slot would wait for the count
        await self._refused_again()
        await self.lifecycle.drop_fallen()
        await self._make_room()
        for adapter in sorted(self.registry.in_state(S.LOADING), key=lambda a: (a.model, a.version)):
            if self.registry.items[adapter.name].state == S.LOADING and not await self._waits(adapter):
                await self.load(adapter)
                await self._make_room()
                self.publisher.publish()
        self.publisher.publish()
        if self.fleet.up_to_date(self.grace):
            await self._unload()
        if self._tidied != self._files_stand():
            await in_thread(self.forget_files)

    async def _pins(self) -> None:
        """How many open episodes each adapter has. In a large store that is counted less often. While versions hold all
        slots it is counted sooner again: a trainer that makes one a second would wait for slots that are free already.
        """
        began, share = time.monotonic(), PINS_SHARE_FULL if self.is_full() else PINS_SHARE
        pause = min(self._count_took / share, PINS_REST) if self._count_took > PINS_CHEAP else 0.0
        if (store := self.stores.current) is None or began < self._counted + pause:
            return
        try:
            self.registry.pins = await in_thread(store.pins.open)
        except Exception as e:
            log.warning("pins cannot be read, keeping the known ones: %s", e)
        self._counted = time.monotonic()
        self._count_took = self._counted - began

    async def _waits(self, adapter: Adapter) -> bool:
        """It waits for the verdict on what is served (``gate.pace``), for a replay, or for a slot. Of those that
        wait the newest stays.
        """
        if self.rehearsals.current.holds(adapter):
            return True
        if self.waits_for(adapter) is None:
            return False
        waiting = [a for a in self.registry.in_state(S.LOADING) if a.model == adapter.model and not a.forced]
        newest = max(waiting, key=lambda a: a.version)
        if newest.version > adapter.version and self.fleet.mine(adapter):
            await self.lifecycle.replace_waiting(adapter, newest)
        return True

    def waits_for(self, adapter: Adapter) -> LoadWait | None:
        """Why a version is not to be loaded now. None: it is."""
        if adapter.forced:
            return None
        if self.rehearsals.current.waits(adapter):
            return LoadWait.REPLAY
        if self.trials.waits(adapter.model):
            return LoadWait.FROZEN if is_frozen(self.trials.of(adapter.model)) else LoadWait.VERDICT
        return LoadWait.SLOT if self.is_full() else None

    def why_loading(self, adapter: Adapter) -> str | None:
        """Why a version is still not loaded, in a sentence. None: it is being loaded."""
        if (wait := self.waits_for(adapter)) is not None:
            served, live = self.registry.served(adapter.model), self.registry.of(adapter.model, S.LIVE)
            first = next((a for a in (served, live) if a is not None and a.frozen), served)
            name = first.name if first is not None else self.registry.base
            return wait.value.format(decided=name, replayed=self.rehearsals.current.running)
        if takers := self.engines.takers():
            lacking = [(e.url, e.failed[adapter.name].error) for e in takers if adapter.name in e.failed]
            return f"{lacking[0][0]} cannot load it: {lacking[0][1]}" if lacking else None
        causes = sorted({e.outage.what for e in self.engines.healthy() if e.outage is not None})
        return f"it waits until an engine takes adapters: {', '.join(causes)}" if causes else "no engine answers"

    async def load(self, adapter: Adapter) -> bool:
        """Into every engine that takes adapters, warmed; then it becomes live or a candidate. False: not yet, or
        refused.
        """
        mine = self.fleet.mine(adapter)
        if not self.engines.takers() or (not mine and adapter.name in self.engines.loaded()):
            return False
        files = self.registry.files
        new = files.folder(adapter) if mine and files.has_own(adapter) else None
        errors = await self.engines.load_all(adapter.name, files.path_for_engine(adapter), new)
        refusal = self._refusal(adapter, errors)
        if refusal is None and self.engines.serves(adapter.name):  # one that lacks it gets no call for it
            now = self.registry.items[adapter.name]
            held = not now.forced and self.trials.waits(now.model)  # something may have frozen meanwhile
            if mine and now.state == S.LOADING and not held:  # it may have been taken back meanwhile
                if self.rehearsals.current.ready(now):
                    await self.lifecycle.activate(now)
                else:
                    self.rehearsals.current.begin(now)
            return True
        if refusal is not None and mine and self.fleet.may_refuse(adapter):
            await self.lifecycle.take_back(adapter, f"the engine refuses it: {refusal}", state=S.REFUSED)
        return False

    def _refusal(self, adapter: Adapter, errors: list[BaseException]) -> str | None:
        """Why it is to be refused. None: it is not, or not yet."""
        for e in errors:
            if not isinstance(e, EngineRefused | EngineLacks | EngineFailed | EngineAway):
                log.error("loading %s: %r", adapter.name, e)
        lacks = next((e for e in errors if isinstance(e, EngineLacks)), None)
        if lacks is not None and not self.engines.serves(adapter.name) and not self.registry.files.exist(adapter):
            return str(lacks)  # no engine has the files, and no proxy
        return self.engines.refusal(adapter.name)

    async def _refused_again(self) -> None:
        """Restarted engines refuse an adapter that served before, and no other has it. They then serve without it."""
        while self.engines.refused:
            name, why = self.engines.refused.popitem()
            adapter = self.registry.keep().get(name)
            if adapter is None or not self.fleet.may_refuse(adapter):
                continue
            if adapter.state in (S.LIVE, S.CANDIDATE):
                await self.lifecycle.take_back(adapter, f"the engine refuses it: {why}", state=S.REFUSED)
            await self._give_up(adapter, "refused")

    def room(self, model: str) -> bool:
        """Whether a version that comes now would be loaded at once."""
        loading = any(a.model == model for a in self.registry.in_state(S.LOADING))
        return not loading and not self.trials.waits(model) and not self.is_full()

    def held(self) -> list[Adapter]:
        """Versions that stay in the engines for running episodes alone, oldest first."""
        bests = {self.registry.best(m) for m in self.registry.models} | self.registry.group_adapters()
        keep = self.registry.keep().values()
        found = [a for a in keep if a.state not in (S.LIVE, S.CANDIDATE) and a.name not in bests]
        return sorted(found, key=lambda a: (a.created, a.version))

    def _yields(self, adapter: Adapter) -> bool:
        """Whether its running episodes may be moved: it was taken back, or a newer version came long enough ago."""
        since = self.superseded.get(adapter.name, math.inf)
        return adapter.state == S.ROLLED_BACK or time.monotonic() - since >= self.config.adapters.pin_seconds

    def is_full(self) -> bool:
        """A version that is loaded now takes the place of one whose running episodes keep it: both need a slot."""
        held = self.held()
        roles = len(self.registry.keep()) - len(held)
        firm = sum(not self._yields(a) for a in held)
        return firm > max(0, self.config.engine.max_loras - roles - 1)

    async def _make_room(self) -> None:
        """Beyond ``max_loras`` the oldest versions that may yield do: their episodes move to the live one."""
        now = time.monotonic()
        self.superseded = {a.name: self.superseded.get(a.name, now) for a in self.held()}
        while len(keep := self.registry.keep()) > self.config.engine.max_loras:
            held = self.held()
            rest = [a for a in keep.values() if a.state not in (S.LIVE, S.CANDIDATE)]
            old = [a for a in held if self._yields(a)] if held else rest
            if not old:
                return
            first = min(old, key=lambda a: (a.state != S.ROLLED_BACK, a.created, a.version))
            await self._give_up(first, "taken_back" if first.state == S.ROLLED_BACK else "slot")

    async def keep(self, adapter: Adapter, seconds: float) -> None:
        """For a replay: every engine has the version for so long, though no run needs it. 0: no longer. Raises
        ``Problem`` 409.
        """
        registry, name = self.registry, adapter.name
        renewed = registry.kept_until.pop(name, 0.0) > time.monotonic()
        self.journal.wake.set()
        if seconds <= 0:
            return
        self.lifecycle.changes.expect_servable(adapter)
        if adapter.state not in (*SERVED_STATES, S.RETIRED, S.ROLLED_BACK):
            why = adapter.reason or self.why_loading(adapter) or "it is being loaded"
            fix = "ask again when it serves, or name another version"
            raise Problem(409, f"{name} is {adapter.state.value}: {why}", field="path.adapter", fix=fix)
        if not self.engines.takers():
            raise Problem(503, "no engine takes adapters just now", fix="see slipstream status", headers=RETRY_HEADERS)
        needed, most = registry.keep().keys() | {name}, self.config.engine.max_loras
        if len(needed) > most or (renewed and name in registry.given_up):
            text = f"the engine's slots ({most}) are all in use, by {', '.join(sorted(needed - {name}))}"
            raise Problem(409, text, field="path.adapter", fix="raise engine.max_loras, or end the runs that keep them")
        registry.given_up.discard(name)
        registry.kept_until[name] = time.monotonic() + seconds
        errors = await self.engines.load_all(name, registry.files.path_for_engine(adapter))
        self.publisher.publish()
        if errors and not self.engines.serves(name):
            registry.kept_until.pop(name, None)
            raise Problem(409, f"{name} cannot be loaded: {errors[0]}", field="path.adapter")

    async def _give_up(self, adapter: Adapter, cause: str) -> None:
        self.registry.given_up.add(adapter.name)
        to = self.registry.live(adapter.model)
        store = self.stores.current
        moved = await in_thread(store.pins.move, adapter.name, to) if store is not None else 0
        self.moves[cause] += moved
        log.info("%s gives up its slot in the engine (%s): %d episodes move to %s", adapter.name, cause, moved, to)
        self.publisher.publish()

    async def _unload(self) -> None:
        """What nobody needs, ``grace`` seconds after it left the live state."""
        if not self.engines.awake.is_set():
            return
        now, keep = time.monotonic(), self.registry.keep()
        loading = {a.name for a in self.registry.in_state(S.LOADING)}
        there = {n for e in self.engines.engines for n in e.loaded}
        self.draining = {n: self.draining.get(n, now) for n in there if n not in keep and n not in loading}
        for name, since in list(self.draining.items()):
            if now - since >= self.grace:
                await self.engines.unload(name)
                del self.draining[name]
                self.publisher.publish()

    def forget_files(self, wanted: int = 0) -> int:
        """Delete files of finished adapters, oldest first: those beyond ``adapters.keep``, and more until ``wanted``
        bytes are free. What a rollback may need stays. → The bytes that were freed.
        """
        freed = 0
        registry = self.registry
        tidied = self._files_stand()
        keep = tidied[1]
        lives = [live for m in registry.models if (live := registry.of(m, S.LIVE))]
        rollback_targets = {back.name for live in lives if (back := registry.last_accepted(live))}
        rollback_targets |= {registry.best(m) for m in registry.models} | registry.group_adapters()
        finished = registry.in_state(S.RETIRED, S.ROLLED_BACK, S.REFUSED)
        self._gone.difference_update(keep)
        over = [a for a in finished if a.name not in keep and a.name not in self._gone]
        self._gone.update(a.name for a in over if not registry.files.has_own(a))
        over = [a for a in over if a.name not in self._gone]
        over.sort(key=lambda a: a.created)
        beyond = max(0, len(over) - self.config.adapters.keep)
        for n, adapter in enumerate(over):
            if n >= beyond and freed >= wanted:
                break
            if adapter.name in rollback_targets:
                continue
            freed += bytes_of(folder := registry.files.folder(adapter))
            shutil.rmtree(folder, ignore_errors=True)
            why = f"adapters.keep = {self.config.adapters.keep}" if n < beyond else "data.max_gb"
            log.info("%s: its files are deleted (%s)", adapter.name, why)
        self._tidied = tidied
        return freed

    def _files_stand(self) -> tuple[int, frozenset[str]]:
        """The registry's changes, and the adapters that are needed: what there is to delete depends on them."""
        loaded = {name for engine in self.engines.engines for name in engine.loaded}
        return self.registry.changes, frozenset(loaded | set(self.registry.keep()))
