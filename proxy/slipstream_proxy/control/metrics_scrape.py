"""Fills the control plane's metrics for one scrape: from its own objects, and from the store's counts."""

from __future__ import annotations

import asyncio
import logging
import time

from prometheus_client import Counter, generate_latest

from slipstream.operate.sidecars import read_stack
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.ingest import spool_bytes
from slipstream_proxy.control.status import read_funnel
from slipstream_proxy.control.threads import in_thread
from slipstream_proxy.json_types import JsonObject

log = logging.getLogger(__name__)
LOOK_EVERY = 2.0
"""Seconds for which counts from the store are good: a scrape must not cost a query each."""
LOOK_PATIENCE = 1.0
"""Seconds that a scrape waits for them; the data plane gives the control plane two."""
ADAPTER_LABELS = 50
"""Adapters with series of their own in the reward metrics: the newest. Bounds the number of series."""
NAMES = 30
STATES = {"episodes": ("open", "done"), "groups": ("forming", "waiting_reward", "ready", "leased", "trained", "parked")}
"""They have a series with 0 too, so that a query of one has an answer."""


class MetricsScrape:
    def __init__(self, deps: Deps) -> None:
        self.deps, self.metrics = deps, deps.metrics
        self._looked = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._done: dict[str, float] = {}
        """Counter → what it had been raised to at the last scrape."""

    def _add(self, name: str, counter: Counter, now: float) -> None:
        counter.inc(max(0.0, now - self._done.get(name, 0.0)))
        self._done[name] = now

    def _own(self) -> None:
        deps, m = self.deps, self.metrics
        stats = deps.ingester.stats if deps.ingester else None
        m.store_up.set(bool(deps.health.up and deps.stores.current is not None and stats and stats.broken is None))
        if stats:
            m.lag.set(stats.lag_seconds)
            self._add("records", m.ingested, stats.records)
            m.unreadable.set(stats.unreadable)
            m.skipped.set(stats.skipped)
            m.torn.set(stats.torn)
        a = deps.registry
        self._add("swaps", m.swaps, deps.lifecycle.swaps)
        self._add("rollbacks", m.rollbacks, deps.lifecycle.rollbacks)
        self._add("losses", m.engine_restarts, deps.engines.restarts)
        for how, count in deps.lease.ended.items():
            self._add(how, m.holds.labels(how), count)
        self._add("held", m.held_seconds, deps.lease.seconds_held())
        m.loaded.set(len(deps.engines.loaded()))
        m.states.clear()
        for item in a.items.values():
            m.states.labels(item.state.value).inc()
        m.pinned.clear()
        for name, count in sorted(a.pins.items(), key=lambda kv: -kv[1])[:ADAPTER_LABELS]:
            m.pinned.labels(name).set(count)
        for model in a.models:
            m.live.labels(model).set(a.versions(model)[1])
        m.sidecar_up.clear()
        for sidecar in read_stack(deps.config.root).sidecars:
            if sidecar.state != "ended":
                m.sidecar_up.labels(sidecar.name).set(sidecar.state == "running")
        for engine in deps.engines.engines:
            m.engine_up.labels(engine.url).set(engine.ok)
            m.engine_takes_adapters.labels(engine.url).set(engine.outage is None)

    async def _look(self) -> None:
        deps, m = self.deps, self.metrics
        funnel = await read_funnel(deps)
        m.funnel.clear()
        for line in funnel.lines:
            m.funnel.labels(line.stage, line.cause).set(line.count)
        counts: JsonObject = await deps.ask(deps.store.statistics.counts, deps.now())
        success = await deps.ask(deps.store.statistics.success_by_adapter)
        for gauge, values in (
            (m.episodes, "episodes"),
            (m.groups, "groups"),
            (m.untrainable, "untrainable"),
            (m.rewards, "rewards"),
        ):
            gauge.clear()
            for state in STATES.get(values, ()):
                gauge.labels(state).set(0)
            for label, count in list((counts.get(values) or {}).items())[:NAMES]:
                number = count.get("count", 0) if isinstance(count, dict) else count
                gauge.labels(str(label)[:80]).set(number)
        m.calls.set(int(counts.get("calls", 0)))
        versions = {a.name: a.version for a in deps.registry.items.values()}
        m.of_sources.look(await deps.ask(deps.store.statistics.rewards_by_source), versions)
        newest = sorted({str(s["adapter"]) for s in success}, key=lambda n: versions.get(n, 0))[-ADAPTER_LABELS:]
        for gauge in (m.reward_mean, m.reward_std, m.reward_episodes):
            gauge.clear()
        for s in success:
            if str(s["adapter"]) in newest:
                labels = (str(s["adapter"]), str(s.get("split", "")), str(s.get("arm", "")))
                m.reward_episodes.labels(*labels).set(s.get("episodes") or 0)
                for gauge, key in ((m.reward_mean, "mean"), (m.reward_std, "std")):
                    if s.get(key) is not None:
                        gauge.labels(*labels).set(s[key])

    async def text(self) -> bytes:
        """Prometheus' text format. If the store is slow, the series have their values of before; none is left out."""
        self._own()
        if self._looking is None or (self._looking.done() and time.monotonic() - self._looked > LOOK_EVERY):
            self._looking = asyncio.create_task(self._refresh(), name="metrics")
        await asyncio.wait({self._looking}, timeout=LOOK_PATIENCE)
        return bytes(generate_latest(self.metrics.registry))

    async def _refresh(self) -> None:
        deps, m = self.deps, self.metrics
        try:
            m.spool.set(await in_thread(spool_bytes, deps.config.spool_dir))
            if deps.ingester:
                pending, oldest = await in_thread(deps.ingester.backlog)
                m.waiting.set(pending)
                m.age.set(max(0.0, deps.now() - oldest) if oldest else 0.0)
            await self._look()
        except Exception as e:
            log.warning("the store's counts cannot be read for the metrics: %s", e)
        self._looked = time.monotonic()
