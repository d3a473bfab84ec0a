"""Swaps adapters in the engines: load new, switch, drain, unload old; and the loops that keep them so.

Never ``load_inplace`` and never a name twice: a reused name serves stale prefix-cache KV (vLLM issue #42125).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from typing import Any

from slipstream.contract import Adapter, AdapterState
from slipstream_proxy.control import gate
from slipstream_proxy.control.adapters import Adapters
from slipstream_proxy.control.agreeing import Meanwhile
from slipstream_proxy.control.engines import Away, Engines, Failed, Refused
from slipstream_proxy.control.fleet import Fleet
from slipstream_proxy.control.hold import Holder
from slipstream_proxy.control.live import Live, ModelLive
from slipstream_proxy.control.threads import end, in_thread
from slipstream_proxy.store.protocol import Store

log = logging.getLogger(__name__)
GRACE = 3.0
"""Seconds between an adapter's last pin (or its being taken out of the live state) and its unloading: a worker may still hold it."""
TICK = 0.5
FIRST_CHECK = 5.0
S = AdapterState


class Swapper:
    def __init__(
        self, adapters: Adapters, engines: Engines, live: Live, store: Store | None, *, grace: float = GRACE
    ) -> None:
        self.adapters = adapters
        self.engines = engines
        self.live = live
        self.store = store
        self.grace = grace
        self.holder = Holder(engines, live, self.publish, shared=adapters.config.engine.share)
        self.config = adapters.config
        self.draining: dict[str, float] = {}
        self.failing: dict[str, float] = {}
        """Adapter → since when the engine answers 5xx for it (monotonic)."""
        self.rewards_changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        adapters.drop = self._drop
        self.fleet = Fleet(self)

    async def _drop(self, name: str) -> None:
        if self.store is not None:
            await in_thread(self.store.drop_adapter_batches, name, time.time())

    async def start(self) -> None:
        await self.engines.start()
        await self._pins()
        self.holder.start()
        # before anybody is told: a control plane that restarts must not say that a healthy engine is down
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.engines.check_all(), FIRST_CHECK)
        self.publish()
        self._tasks = [asyncio.create_task(self._health(), name="health"), asyncio.create_task(self._run(), name="swap"),
                       asyncio.create_task(self._gate(), name="gate")]  # fmt: skip

    async def stop(self) -> None:
        await end(self._tasks)
        await self.holder.stop()
        await self.engines.stop()

    def wanted(self) -> dict[str, str]:
        return {n: self.adapters.path_for_engine(a) for n, a in self.adapters.keep().items()}

    def loaded(self) -> set[str]:
        """In every engine that is up."""
        up = self.engines.healthy()
        return set.intersection(*(e.loaded for e in up)) if up else set()

    def publish(self) -> None:
        keep, a = self.adapters.keep(), self.adapters
        models = {
            m: ModelLive(a.base, a.live(m), a.arms(m), [n for n, x in keep.items() if x.model == m]) for m in a.models
        }
        self.live.set(models, [e.public() for e in self.engines.engines])

    async def _health(self) -> None:
        while True:
            try:
                await self.engines.check_all()
                await self.holder.rouse()
                self.publish()
                self.adapters.wake.set()
            except Exception:
                log.exception("the health check failed")
            await asyncio.sleep(self.engines.interval)

    async def _run(self) -> None:
        while True:
            self.adapters.wake.clear()
            try:
                await self.tick()
            except Meanwhile:
                await asyncio.sleep(0.1)  # another proxy was first: look again
            except Exception:
                log.exception("swapping failed; trying again")
                await asyncio.sleep(TICK)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.adapters.wake.wait(), TICK)

    async def tick(self) -> None:
        await self.fleet.follow()
        await self._pins()
        await self._refused_again()
        await self._make_room()
        loading = sorted(
            (a for a in self.adapters.items.values() if a.state == S.LOADING), key=lambda a: (a.model, a.version)
        )
        for adapter in loading:
            if self.adapters.items[adapter.name].state == S.LOADING:
                await self.load(adapter)
                await self._make_room()
                self.publish()
        self.publish()
        if self.fleet.up_to_date(self.grace):
            await self._unload()
        await in_thread(self._forget_files)

    async def _pins(self) -> None:
        if self.store is not None:
            try:
                self.adapters.pins = await in_thread(self.store.open_pins)
            except Exception as e:
                log.warning("pins cannot be read, keeping what was known: %s", e)

    async def load(self, adapter: Adapter) -> bool:
        """Into every engine that is up, warmed; then it gets its part. False: not yet, or refused."""
        up = self.engines.healthy()
        mine = self.fleet.mine(adapter)
        if not up or (not mine and adapter.name in self.loaded()):
            return False
        path = self.adapters.path_for_engine(adapter)
        results = await asyncio.gather(*(self.engines.load(e, adapter.name, path) for e in up), return_exceptions=True)
        errors = [r for r in results if isinstance(r, BaseException)]
        if not errors:
            self.failing.pop(adapter.name, None)
            if mine and self.adapters.items[adapter.name].state == S.LOADING:  # it may have been taken back meanwhile
                await self.adapters.loaded(self.adapters.items[adapter.name])
            return True
        no = next((e for e in errors if isinstance(e, Refused)), None)
        failed = next((e for e in errors if isinstance(e, Failed)), None)
        if failed is not None and no is None:
            since = self.failing.setdefault(adapter.name, time.monotonic())
            no = Refused(str(failed)) if time.monotonic() - since > self.config.adapters.patience else None
        for e in errors:
            if not isinstance(e, Refused | Failed | Away):
                log.error("loading %s: %r", adapter.name, e)
        if no is not None and mine and self.fleet.may_refuse(adapter):
            self.failing.pop(adapter.name, None)
            await self.adapters.take_back(adapter, f"the engine refuses it: {no}", {}, S.REFUSED)
        return False

    async def _refused_again(self) -> None:
        """An adapter that served before and that a restarted engine will not take: without it, rather than without the engine."""
        while self.engines.refused:
            name, why = self.engines.refused.popitem()
            adapter = self.adapters.keep().get(name)
            if adapter is None:
                continue
            if not self.fleet.may_refuse(adapter):
                continue
            if adapter.state in (S.LIVE, S.CANDIDATE):
                await self.adapters.take_back(adapter, f"the engine refuses it: {why}", {}, S.REFUSED)
            await self._give_up(adapter)

    async def _make_room(self) -> None:
        """Pinned versions ≤ ``max_loras`` - 1: beyond that the oldest versions' episodes move to the live one."""
        while len(keep := self.adapters.keep()) > self.config.engine.max_loras - 1:
            old = sorted(
                (a for a in keep.values() if a.state not in (S.LIVE, S.CANDIDATE)), key=lambda a: (a.created, a.version)
            )
            if not old:
                return
            await self._give_up(old[0])

    async def _give_up(self, adapter: Adapter) -> None:
        self.adapters.given_up.add(adapter.name)
        to = self.adapters.live(adapter.model)
        moved = await in_thread(self.store.move_pins, adapter.name, to) if self.store else 0
        log.info("%s is given up for room: %d running episodes move to %s", adapter.name, moved, to)
        self.publish()

    async def _unload(self) -> None:
        """What nobody needs, ``grace`` after it left the live state."""
        if not self.engines.awake.is_set():
            return
        now, keep = time.monotonic(), self.adapters.keep()
        loading = {a.name for a in self.adapters.items.values() if a.state == S.LOADING}
        there = {n for e in self.engines.engines for n in e.loaded}
        self.draining = {n: self.draining.get(n, now) for n in there if n not in keep and n not in loading}
        for name, since in list(self.draining.items()):
            if now - since >= self.grace:
                await self.engines.unload(name)
                del self.draining[name]
                self.publish()

    def _forget_files(self) -> None:
        """Files of retired adapters beyond ``adapters.keep``, oldest first."""
        keep = set(self.adapters.keep()) | {n for e in self.engines.engines for n in e.loaded}
        over = [
            a for a in list(self.adapters.items.values())
            if a.state in (S.RETIRED, S.ROLLED_BACK, S.REFUSED) and a.name not in keep and (self.config.adapters_dir / a.path).is_dir()
        ]  # fmt: skip
        over.sort(key=lambda a: a.created)
        last = {
            back.name
            for m in self.adapters.models
            if (live := self.adapters.of(m, S.LIVE)) and (back := self.adapters._last_accepted(live))
        }
        for adapter in over[: max(0, len(over) - self.config.adapters.keep)]:
            if adapter.name not in last:  # what a rollback of the live one would go back to
                shutil.rmtree(self.config.adapters_dir / adapter.path, ignore_errors=True)
                log.info("%s: its files are deleted (adapters.keep = %d)", adapter.name, self.config.adapters.keep)

    async def _gate(self) -> None:
        while True:
            await self.rewards_changed.wait()
            self.rewards_changed.clear()
            try:
                await self.decide()
            except Meanwhile:
                self.rewards_changed.set()  # another proxy was first: look again
            except Exception:
                log.exception("the gate cannot decide just now")
            await asyncio.sleep(1.0)

    async def decide(self) -> None:
        """Look at every undecided candidate's rewards."""
        if self.store is None or self.config.gate.mode == "manual":
            return
        g = self.config.gate
        await self.fleet.follow()
        for model in self.adapters.models:
            candidate = self.adapters.of(model, S.CANDIDATE)
            if candidate is None:
                continue
            control = self.adapters.accepted(model)
            verdict = await in_thread(self._judge, candidate.name, control)
            numbers: dict[str, Any] = {"gate": {**verdict.numbers(), "control": control}}
            if self.adapters.items[candidate.name].state != S.CANDIDATE:
                continue
            if verdict.decision == "rollback":
                await self.adapters.take_back(candidate, f"worse than {control}", numbers)
            elif verdict.decision == "accept":
                undecided = verdict.evidence_fine < 1 / g.alpha
                await self.adapters.accept(
                    candidate, "undecided for long enough" if undecided else f"not worse than {control}", numbers
                )
            else:
                self.adapters.items[candidate.name] = candidate.model_copy(
                    update={"numbers": {**candidate.numbers, **numbers}}
                )
            self.publish()

    def _judge(self, candidate: str, control: str) -> gate.Verdict:
        assert self.store is not None
        g = self.config.gate
        rows = self.store.arm_rewards(candidate, control)
        return gate.judge(
            rows,
            candidate,
            control,
            alpha=g.alpha,
            min_pairs=g.min_pairs,
            block=self.config.groups.size,
            max_episodes=g.max_episodes,
        )
