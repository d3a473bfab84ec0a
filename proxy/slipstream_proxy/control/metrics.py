"""The control plane's metrics, in its own registry: what ``GET /internal/metrics`` answers and the data plane's ``/metrics`` adds to its own."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from slipstream.contract import Event
from slipstream_proxy.control.ingest import spool_bytes
from slipstream_proxy.control.metrics_calls import CallMetrics, RewardMetrics

if TYPE_CHECKING:
    from aiohttp import web

    from slipstream_proxy.control.deps import Deps

log = logging.getLogger(__name__)
LOOK_EVERY = 2.0
"""Seconds for which counts from the store are good: a scrape must not cost a query each."""
ADAPTER_LABELS = 50
"""Adapters with series of their own in the reward metrics: the newest. Bounds the number of series."""
NAMES = 30
STATES = {"episodes": ("open", "done"), "groups": ("forming", "waiting_reward", "ready", "leased", "trained", "parked")}
"""Told as 0 too, so that a query of one has an answer."""
STEP_NUMBERS = {
    "loss": "Loss of the last training step.",
    "kl": "KL to the adapter before, nats a token, of the last training step.",
    "entropy": "Mean entropy in nats a token of the last training step.",
    "clip_ratio": "Share of tokens whose weight was clipped in the last training step.",
    "staleness": "Mean versions behind of the last training step's samples.",
    "logprob_gap": "Mean absolute gap between engine's and trainer's log-probabilities in the last training step.",
    "reward": "Mean reward of the last training step.",
    "tokens_per_second": "Tokens a second of the last training step.",
    "grad_norm": "Gradient norm of the last training step.",
}
ALIASES = {
    "clip": "clip_ratio",
    "clipped": "clip_ratio",
    "clip_fraction": "clip_ratio",
    "clip_share": "clip_ratio",
    "gap": "logprob_gap",
    "reward_mean": "reward",
}


class ControlMetrics:
    def __init__(self) -> None:
        r = self.registry = CollectorRegistry()
        self.requests = Counter(
            "slipstream_control_requests", "Control API requests.", ["route", "method", "status"], registry=r
        )
        self.seconds = Histogram(
            "slipstream_control_request_seconds", "Time to answer a control API request.", ["route"], registry=r
        )
        self.lag = Gauge(
            "slipstream_ingest_lag_seconds",
            "Age of the newest ingested record when it was stored; 0 when nothing waits.",
            registry=r,
        )
        self.ingested = Counter("slipstream_ingest_records", "Records taken from the spool into the store.", registry=r)
        self.commit = Histogram(
            "slipstream_commit_seconds",
            "Time from reading a batch of the spool to its commit in the store.",
            registry=r,
        )
        self.spool = Gauge("slipstream_spool_bytes", "Bytes in spool segments.", registry=r)
        self.waiting = Gauge(
            "slipstream_spool_pending_bytes", "Bytes of the spool that are not in the store yet.", registry=r
        )
        self.age = Gauge(
            "slipstream_spool_age_seconds", "Age of the oldest record that is not in the store yet.", registry=r
        )
        self.of_calls, self.of_sources = CallMetrics(r), RewardMetrics(r)
        self.store_up = Gauge("slipstream_store_up", "1 when the store takes records.", registry=r)
        self.unreadable = Gauge(
            "slipstream_ingest_unreadable_records",
            "Records since start of which only the head could be stored.",
            registry=r,
        )
        self.skipped = Gauge(
            "slipstream_ingest_skipped_records",
            "Records since start that the store would not take in any form.",
            registry=r,
        )
        self.torn = Gauge("slipstream_spool_damaged_segments", "Segments since start with a damaged tail.", registry=r)
        self.episodes = Gauge("slipstream_episodes", "Episodes by state.", ["state"], registry=r)
        self.groups = Gauge("slipstream_groups", "Groups by state.", ["state"], registry=r)
        self.calls = Gauge("slipstream_stored_calls", "Calls in the store.", registry=r)
        self.untrainable = Gauge(
            "slipstream_untrainable_calls", "Stored calls that cannot be trained on, by reason.", ["reason"], registry=r
        )
        self.rewards = Gauge("slipstream_rewards", "Rewards in the store by source.", ["source"], registry=r)
        self.reward_mean = Gauge(
            "slipstream_reward_mean", "Mean training reward of episodes.", ["adapter", "split", "arm"], registry=r
        )
        self.reward_std = Gauge(
            "slipstream_reward_std",
            "Spread of the training reward of episodes.",
            ["adapter", "split", "arm"],
            registry=r,
        )
        self.reward_episodes = Gauge(
            "slipstream_rewarded_episodes", "Episodes with a training reward.", ["adapter", "split", "arm"], registry=r
        )
        self.live = Gauge(
            "slipstream_adapter_live_version",
            "Version that new episodes get; 0 is the base model.",
            ["model"],
            registry=r,
        )
        self.loaded = Gauge("slipstream_adapters_loaded", "Adapters in every engine that is up.", registry=r)
        self.states = Gauge("slipstream_adapters", "Adapters by state.", ["state"], registry=r)
        self.pinned = Gauge(
            "slipstream_adapter_pinned_episodes", "Open episodes pinned to an adapter.", ["adapter"], registry=r
        )
        self.swaps = Counter("slipstream_adapter_swaps", "Adapters that got into the engines.", registry=r)
        self.swap_seconds = Histogram("slipstream_adapter_swap_seconds", "From an adapter's registration until it serves.", registry=r,
                                      buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300))  # fmt: skip
        self.rollbacks = Counter("slipstream_adapter_rollbacks", "Adapters that were taken back.", registry=r)
        self.engine_up = Gauge(
            "slipstream_engine_up", "1 when the engine answers and has its adapters.", ["engine"], registry=r
        )
        self.engine_restarts = Counter(
            "slipstream_engine_adapter_losses", "Times that an engine had lost its adapters.", registry=r
        )
        self.holds = Counter(
            "slipstream_engine_holds",
            "Times that the trainer had the GPU (engine.share), by how it ended.",
            ["how"],
            registry=r,
        )
        self.held_seconds = Counter(
            "slipstream_engine_held_seconds",
            "Time in which the trainer had the GPU and no call could begin.",
            registry=r,
        )
        self.events = Counter("slipstream_events", "Events posted by trainer and judge.", ["kind"], registry=r)
        self.steps = Counter("slipstream_training_steps", "Training steps told by the trainer.", registry=r)
        self.step = {k: Gauge(f"slipstream_training_{k}", text, registry=r) for k, text in STEP_NUMBERS.items()}
        self._kinds: set[str] = set()
        self._looked = 0.0
        self._done = {
            "records": 0,
            "commits": 0,
            "swaps": 0,
            "rollbacks": 0,
            "losses": 0,
            "released": 0,
            "expired": 0,
            "failed": 0,
        }
        self._held = 0.0

    def request(self, request: web.Request, status: int, seconds: float) -> None:
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "other"
        method = request.method if request.method in ("GET", "POST", "PUT", "DELETE") else "other"
        self.requests.labels(route, method, str(status)).inc()
        if route != "/internal/live":
            self.seconds.labels(route).observe(seconds)

    def event(self, event: Event) -> None:
        """What trainer and judge say of themselves."""
        kind = event.kind if event.kind in self._kinds or len(self._kinds) < NAMES else "other"
        self._kinds.add(kind)
        self.events.labels(kind).inc()
        if event.kind != "step":
            return
        self.steps.inc()
        for name, value in event.data.items():
            gauge = self.step.get(ALIASES.get(name, name))
            if gauge is not None and isinstance(value, int | float):
                gauge.set(value)

    def _add(self, name: str, counter: Counter, now: float) -> None:
        counter.inc(max(0.0, now - self._done[name]))
        self._done[name] = int(now)

    def _own(self, deps: Deps) -> None:
        stats = deps.ingester.stats if deps.ingester else None
        self.store_up.set(bool(deps.store_or_none is not None and stats and stats.broken is None))
        if stats:
            self.lag.set(stats.lag_seconds)
            self._add("records", self.ingested, stats.records)
            self.unreadable.set(stats.unreadable)
            self.skipped.set(stats.skipped)
            self.torn.set(stats.torn)
        a, swapper = deps.adapters, deps.swapper
        self._add("swaps", self.swaps, a.swaps)
        self._add("rollbacks", self.rollbacks, a.rollbacks)
        self._add("losses", self.engine_restarts, swapper.engines.restarts)
        for how, count in swapper.holder.ended.items():
            self._add(how, self.holds.labels(how), count)
        held = swapper.holder.seconds_held()
        self.held_seconds.inc(max(0.0, held - self._held))
        self._held = max(held, self._held)
        self.loaded.set(len(swapper.loaded()))
        self.states.clear()
        for item in a.items.values():
            self.states.labels(item.state.value).inc()
        self.pinned.clear()
        for name, count in sorted(a.pins.items(), key=lambda kv: -kv[1])[:ADAPTER_LABELS]:
            self.pinned.labels(name).set(count)
        for model in a.models:
            self.live.labels(model).set(a.versions(model)[1])
        for engine in swapper.engines.engines:
            self.engine_up.labels(engine.url).set(engine.ok)

    async def _look(self, deps: Deps) -> None:
        counts: dict[str, Any] = await deps.ask(deps.store.counts, deps.now())
        success = await deps.ask(deps.store.success_by_adapter)
        for gauge, values in (
            (self.episodes, "episodes"),
            (self.groups, "groups"),
            (self.untrainable, "untrainable"),
            (self.rewards, "rewards"),
        ):
            gauge.clear()
            for state in STATES.get(values, ()):
                gauge.labels(state).set(0)
            for label, count in list((counts.get(values) or {}).items())[:NAMES]:
                number = count.get("count", 0) if isinstance(count, dict) else count
                gauge.labels(str(label)[:80]).set(number)
        self.calls.set(int(counts.get("calls", 0)))
        versions = {a.name: a.version for a in deps.adapters.items.values()}
        self.of_sources.look(await deps.ask(deps.store.rewards_by_source), versions)
        newest = sorted({str(s["adapter"]) for s in success}, key=lambda n: versions.get(n, 0))[-ADAPTER_LABELS:]
        for gauge in (self.reward_mean, self.reward_std, self.reward_episodes):
            gauge.clear()
        for s in success:
            if str(s["adapter"]) in newest:
                labels = (str(s["adapter"]), str(s.get("split", "")), str(s.get("arm", "")))
                self.reward_episodes.labels(*labels).set(s.get("episodes") or 0)
                for gauge, key in ((self.reward_mean, "mean"), (self.reward_std, "std")):
                    if s.get(key) is not None:
                        gauge.labels(*labels).set(s[key])

    async def text(self, deps: Deps) -> bytes:
        """Prometheus' text format."""
        self._own(deps)
        if time.monotonic() - self._looked > LOOK_EVERY:
            self._looked = time.monotonic()
            self.spool.set(await deps.ask(spool_bytes, deps.config.spool_dir))
            if deps.ingester:
                pending, oldest = await deps.ask(deps.ingester.backlog)
                self.waiting.set(pending)
                self.age.set(max(0.0, deps.now() - oldest) if oldest else 0.0)
            try:
                await self._look(deps)
            except Exception as e:
                log.warning("counts are not to be had for the metrics: %s", e)
        return bytes(generate_latest(self.registry))
