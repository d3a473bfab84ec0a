"""The control plane's metrics, in its own registry: what ``GET /internal/metrics`` answers and the data plane's
``/metrics`` adds to its own.
"""

from __future__ import annotations

from collections import Counter as Counted
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from slipstream.contract import Event, GateReport, LearningPoint
from slipstream_proxy.data.observe.exposition import operation
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.store.values import RecordedCall

if TYPE_CHECKING:
    from aiohttp import web

    from slipstream_proxy.control.storage.spool_reader import Item

MAX_ADAPTER_SERIES = 50
MAX_SOURCE_SERIES = 10
MAX_REWARDED_ADAPTERS = 20
"""Adapters, the newest, of which rewards are told by source."""
OTHER_LABEL = "other"
TOKEN_DIRECTIONS = ("in", "out")
TOKEN_TYPES = ("input", "output")
"""Of the directions, under OpenTelemetry's names."""


def tokens_of(row: RecordedCall) -> tuple[int, int]:
    """Tokens in and out: the captured ids, else the engine's own count."""
    usage = row.head.extra.get("usage")
    if usage:
        return usage[0] or 0, usage[1] or 0
    return len(row.parsed.prompt_ids), sum(len(c.completion_ids) for c in row.parsed.choices)


class CallMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.tokens = Counter(
            "slipstream_tokens",
            "Tokens of recorded calls: in (prompts) and out (sampled).",
            ["adapter", "direction"],
            registry=registry,
        )
        self.usage = Histogram(
            "gen_ai_client_token_usage",
            "Tokens of a recorded call, under OpenTelemetry's name.",
            ["gen_ai_token_type", "gen_ai_operation_name"],
            registry=registry,
            buckets=[4**n for n in range(11)],
        )
        self._adapters: dict[str, None] = {}
        self._usage: dict[tuple[str, str], Histogram] = {}
        """(kind, operation) → its series."""

    def ingested(self, items: Iterable[Item]) -> None:
        """Count the calls among them: of each adapter once, since many calls come together."""
        sums: Counted[tuple[str, str]] = Counted()
        for item in items:
            if isinstance(item, RecordedCall):
                self._call(item, sums)
        for (adapter, direction), count in sums.items():
            self._know(adapter)
            self.tokens.labels(adapter, direction).inc(count)

    def _call(self, row: RecordedCall, sums: Counted[tuple[str, str]]) -> None:
        head = row.head
        adapter = (head.adapter or "base") if head.trained else "external" if head.external else "base"
        for direction, kind, count in zip(TOKEN_DIRECTIONS, TOKEN_TYPES, tokens_of(row), strict=True):
            if count:
                sums[adapter, direction] += count
                named = kind, operation(head.dialect)
                if named not in self._usage:
                    self._usage[named] = self.usage.labels(*named)
                self._usage[named].observe(count)

    def _know(self, adapter: str) -> None:
        """With too many adapters the oldest one's tokens are added up under ``other``."""
        if adapter in self._adapters:
            return
        self._adapters[adapter] = None
        if len(self._adapters) > MAX_ADAPTER_SERIES:
            oldest = next(iter(self._adapters))
            del self._adapters[oldest]
            for direction in TOKEN_DIRECTIONS:
                self.tokens.labels(OTHER_LABEL, direction).inc(self.tokens.labels(oldest, direction)._value.get())
                self.tokens.remove(oldest, direction)


class RewardMetrics:
    """Number, mean and spread of the rewards of each source, by adapter and split."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, labelnames=["source", "adapter", "split"], registry=registry)
        self.count = gauge("slipstream_source_rewards", "Rewards of a source, corrected ones once.")
        self.mean = gauge("slipstream_source_reward_mean", "Mean reward of a source.")
        self.std = gauge("slipstream_source_reward_std", "Spread (standard deviation) of a source's rewards.")

    def look(self, rows: Sequence[JsonObject], versions: dict[str, int]) -> None:
        """``rows``: of ``statistics.rewards_by_source``. Only the most frequent sources and newest adapters count."""
        for gauge in (self.count, self.mean, self.std):
            gauge.clear()
        by_source: dict[str, int] = {}
        for row in rows:
            by_source[row["source"]] = by_source.get(row["source"], 0) + row["count"]
        sources = set(sorted(by_source, key=lambda s: -by_source[s])[:MAX_SOURCE_SERIES])
        adapters = set(sorted({r["adapter"] for r in rows}, key=lambda a: versions.get(a, 0))[-MAX_REWARDED_ADAPTERS:])
        for row in rows:
            if row["source"] in sources and row["adapter"] in adapters:
                labels = (str(row["source"])[:80], str(row["adapter"]), str(row["split"]))
                self.count.labels(*labels).set(row["count"])
                self.mean.labels(*labels).set(row["mean"])
                self.std.labels(*labels).set(row["std"])


MAX_EVENT_KINDS = 30
STEP_NUMBERS = {
    "loss": "Loss of the last training step.",
    "kl": "KL to the adapter before, nats a token, of the last training step.",
    "entropy": "Mean entropy in nats a token of the last training step.",
    "clip_ratio": "Share of tokens whose weight was clipped in the last training step.",
    "staleness": "Mean versions behind of the last training step's samples.",
    "logprob_gap": "Mean absolute gap between engine's and trainer's log-probabilities in the last training step.",
    "engine_gap": "The same over the tokens that the trainer's own weights sampled, nats.",
    "reward": "Mean reward of the last training step.",
    "tokens_per_second": "Tokens a second of the last training step.",
    "grad_norm": "Gradient norm of the last training step.",
    "reward_std": "Spread (standard deviation) of the rewards of the last training step.",
    "truncated": "Share of tokens whose importance weight was capped in the last training step.",
    "ratio": "Mean ratio of the trainer's to the engine's probabilities in the last training step.",
    "learning_rate": "Learning rate of the last training step.",
    "continuations": "Share of later calls of the last training step that continue an earlier one token by token.",
    "padding": "Share of computed tokens of the last training step that is padding.",
    "saving": "Share of tokens that merging and trees spared in the last training step.",
    "memory_bytes": "Peak memory of the trainer in the last training step.",
}
METRIC_ALIASES = {"clipped": "clip_ratio"}
"""Names in a step's event → names of metrics."""
ADAPTER_USE = {
    "calls": "Calls with an adapter that the engines' plugin has counted.",
    "loads": "Copies of an adapter into an engine's slot; the other calls found theirs there.",
    "reads": "Loads that read the adapter's file, because the engine's host memory did not have it.",
    "load_seconds": "Time of these loads.",
    "waits": "Calls that waited in an engine until their adapter had a slot.",
    "wait_seconds": "Time that they waited.",
}
"""Field of ``AdapterUse`` → its metric's text."""
BATCH_OUTCOMES = ("step", "skipped", "undone")
"""Kinds of events that say what became of a batch."""
MAX_LEFT_OUT_REASONS = 30
BATCH_SECONDS_BUCKETS = (0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
RECENT_REWARD_SPAN_S = 3600.0
"""Seconds that the recent rewards look back."""
DECISION_NUMBERS = {"accept": 1, "undecided": 0, "rollback": -1}


class BatchMetrics:
    """What became of the trainer's batches, as its events say: they need no port of the trainer's own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self.outcomes = counter("slipstream_training_batches", "Batches by what became of them.", ["outcome"])
        self.tokens = counter("slipstream_training_tokens", "Tokens trained on.")
        self.left_out = counter(
            "slipstream_training_left_out",
            "Sampled choices of batches that were left out, by reason; runs, of groups with equal rewards.",
            ["reason"],
        )
        self.seconds = Histogram(
            "slipstream_training_batch_seconds", "Time of a batch.", registry=registry, buckets=BATCH_SECONDS_BUCKETS
        )
        self._reasons = {"rolled_back"}
        self.left_out.labels("rolled_back")
        for outcome in BATCH_OUTCOMES:
            self.outcomes.labels(outcome)

    def event(self, event: Event) -> None:
        if event.kind not in BATCH_OUTCOMES:
            return
        data = event.data
        self.outcomes.labels(event.kind).inc()
        if isinstance(seconds := data.get("seconds"), int | float) and seconds >= 0:
            self.seconds.observe(seconds)
        if event.kind == "step" and isinstance(tokens := data.get("tokens"), int) and tokens > 0:
            self.tokens.inc(tokens)
        reasons = data.get("untrainable")
        for reason, count in reasons.items() if isinstance(reasons, dict) else ():
            if isinstance(count, int) and count > 0:
                self.left_out.labels(self._known(reason)).inc(count)

    def _known(self, reason: str) -> str:
        if reason in self._reasons or len(self._reasons) < MAX_LEFT_OUT_REASONS:
            self._reasons.add(reason)
            return reason
        return OTHER_LABEL


class TrialMetrics:
    """What is served against what it is compared with: the gate's figures, and the rewards of the last hour."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gate = partial(Gauge, labelnames=["model", "adapter"], registry=registry)
        self.difference = gate(
            "slipstream_gate_difference", "Mean reward of what is served or on trial less that of its control."
        )
        lower = "The difference is above this with probability 1 - gate.alpha, at any time."
        self.lower = gate("slipstream_gate_difference_lower", lower)
        self.upper = gate("slipstream_gate_difference_upper", lower.replace("above", "below"))
        self.evidence = gate("slipstream_gate_evidence", "Evidence that it is worse than its control.")
        self.threshold = gate("slipstream_gate_evidence_threshold", "Evidence at which it is taken back.")
        self.decision = gate("slipstream_gate_verdict", "The gate's verdict: 1 accepted, 0 none yet, -1 taken back.")
        recent = partial(Gauge, labelnames=["model", "role"], registry=registry)
        self.mean = recent(
            "slipstream_recent_reward_mean",
            "Mean reward of runs that began in the last hour, by role (live, control, held-out).",
        )
        self.low = recent("slipstream_recent_reward_low", "The lower end of its 95 % interval.")
        self.high = recent("slipstream_recent_reward_high", "The upper end of its 95 % interval.")
        self.runs = recent("slipstream_recent_rewarded_episodes", "Runs that it is of.")

    def gate(self, reports: Mapping[tuple[str, str], GateReport]) -> None:
        """``reports``: (model, adapter) → what the gate knows of it."""
        for gauge in (self.difference, self.lower, self.upper, self.evidence, self.threshold, self.decision):
            gauge.clear()
        for labels, report in reports.items():
            known = ((self.difference, report.difference), (self.lower, report.lower), (self.upper, report.upper))
            for gauge, value in known:
                if value is not None:
                    gauge.labels(*labels).set(value)
            self.evidence.labels(*labels).set(report.evidence)
            self.threshold.labels(*labels).set(report.threshold)
            self.decision.labels(*labels).set(DECISION_NUMBERS[report.decision])

    def rewards(self, points: Mapping[str, Sequence[LearningPoint]]) -> None:
        """``points``: model → one point for each role."""
        for gauge in (self.mean, self.low, self.high, self.runs):
            gauge.clear()
        for model, found in points.items():
            for point in found:
                labels = (model, point.series or "")
                self.mean.labels(*labels).set(point.mean)
                self.low.labels(*labels).set(point.low)
                self.high.labels(*labels).set(point.high)
                self.runs.labels(*labels).set(point.n)


class ControlMetrics:
    def __init__(self) -> None:
        r = self.registry = CollectorRegistry()
        self.of_calls, self.of_sources = CallMetrics(r), RewardMetrics(r)
        self.of_batches, self.of_trials = BatchMetrics(r), TrialMetrics(r)
        self._kinds = {"skipped"}
        counter, gauge = partial(Counter, registry=r), partial(Gauge, registry=r)
        histogram = partial(Histogram, registry=r)
        self._requests_and_ingest(counter, gauge, histogram)
        self._stored(counter, gauge)
        self._versions(counter, gauge, histogram)
        self._engines(counter, gauge)
        self._training(counter, gauge)
        self._plugin_errors = counter("slipstream_plugin_errors", "Failures of a plug-in.", ["plugin"])

    def _requests_and_ingest(
        self, counter: partial[Counter], gauge: partial[Gauge], histogram: partial[Histogram]
    ) -> None:
        self.requests = counter("slipstream_control_requests", "Control API requests.", ["route", "method", "status"])
        self.seconds = histogram(
            "slipstream_control_request_seconds", "Time to answer a control API request.", ["route"]
        )
        self.lag = gauge(
            "slipstream_ingest_lag_seconds",
            "Age of the newest ingested record when it was stored; 0 when nothing waits.",
        )
        self.ingested = counter("slipstream_ingest_records", "Records taken from the spool into the store.")
        self.commit = histogram(
            "slipstream_commit_seconds", "Time from reading a batch of the spool to its commit in the store."
        )
        self.spool = gauge("slipstream_spool_bytes", "Bytes in spool segments.")
        self.waiting = gauge("slipstream_spool_pending_bytes", "Bytes of the spool that are not in the store yet.")
        self.age = gauge("slipstream_spool_age_seconds", "Age of the oldest record that is not in the store yet.")
        self.store_up = gauge("slipstream_store_up", "1 when the store takes records.")
        self.unreadable = gauge(
            "slipstream_ingest_unreadable_records", "Records since start of which only the head could be stored."
        )
        self.skipped = gauge(
            "slipstream_ingest_skipped_records", "Records since start that the store would not take in any form."
        )
        self.torn = gauge("slipstream_spool_damaged_segments", "Segments since start with a damaged tail.")

    def _stored(self, counter: partial[Counter], gauge: partial[Gauge]) -> None:
        self.episodes = gauge("slipstream_episodes", "Episodes by state.", ["state"])
        self.groups = gauge("slipstream_groups", "Groups by state.", ["state"])
        self.calls = gauge("slipstream_stored_calls", "Calls in the store.")
        self.untrainable = gauge(
            "slipstream_untrainable_calls", "Stored calls that cannot be trained on, by reason.", ["reason"]
        )
        self.rewards = gauge("slipstream_rewards", "Rewards in the store by source.", ["source"])
        by_arm = partial(gauge, labelnames=["adapter", "split", "arm"])
        self.reward_mean = by_arm("slipstream_reward_mean", "Mean training reward of episodes.")
        self.reward_std = by_arm("slipstream_reward_std", "Spread of the training reward of episodes.")
        self.reward_episodes = by_arm("slipstream_rewarded_episodes", "Episodes with a training reward.")

    def _versions(self, counter: partial[Counter], gauge: partial[Gauge], histogram: partial[Histogram]) -> None:
        self.live = gauge(
            "slipstream_adapter_live_version", "Version that new episodes get; 0 is the base model.", ["model"]
        )
        self.frozen = gauge(
            "slipstream_gate_frozen", "1 while a guard or a person froze what is served: a person decides.", ["model"]
        )
        self.kept_groups = gauge(
            "slipstream_gate_kept_groups", "Groups of runs that what is served was taken back for alone.", ["model"]
        )
        self.waiting_trainers = gauge(
            "slipstream_trainers_waiting", "Trainers that wait, because another one learns for the model.", ["model"]
        )
        self.loaded = gauge("slipstream_adapters_loaded", "Adapters in every engine that is up.")
        self.states = gauge("slipstream_adapters", "Adapters by state.", ["state"])
        self.pinned = gauge("slipstream_adapter_pinned_episodes", "Open episodes pinned to an adapter.", ["adapter"])
        self.swaps = counter("slipstream_adapter_swaps", "Adapters that got into the engines.")
        self.swap_seconds = histogram(
            "slipstream_adapter_swap_seconds",
            "From an adapter's registration until it serves.",
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
        )
        self.rollbacks = counter("slipstream_adapter_rollbacks", "Adapters that were taken back.")
        self.moves = counter(
            "slipstream_moved_episodes",
            "Running episodes whose adapter left the engines: its slot was needed, it was taken_back, or refused.",
            ["cause"],
        )

    def _engines(self, counter: partial[Counter], gauge: partial[Gauge]) -> None:
        self.engine_up = gauge("slipstream_engine_up", "1 when the engine answers and has its adapters.", ["engine"])
        self.engine_takes_adapters = gauge(
            "slipstream_engine_takes_adapters",
            "0 when the engine answers and takes no adapters at run time; `slipstream status` says why.",
            ["engine"],
        )
        self.engine_lacks_adapters = gauge(
            "slipstream_engine_lacks_adapters",
            "Adapters that the engine was to load and has not: it lacks their files, or refuses what others take.",
            ["engine"],
        )
        self.sidecar_up = gauge(
            "slipstream_sidecar_up",
            "1 while `slipstream up` has this trainer or judge running, and it asks for work.",
            ["name"],
        )
        self.engine_restarts = counter(
            "slipstream_engine_adapter_losses", "Times that an engine had lost its adapters."
        )
        self.adapter_use = {name: counter(f"slipstream_adapter_{name}", text) for name, text in ADAPTER_USE.items()}
        self.holds = counter(
            "slipstream_engine_holds", "Times that the trainer had the GPU (engine.share), by how it ended.", ["how"]
        )
        self.held_seconds = counter(
            "slipstream_engine_held_seconds", "Time in which the trainer had the GPU and no call could begin."
        )

    def _training(self, counter: partial[Counter], gauge: partial[Gauge]) -> None:
        self.funnel = gauge(
            "slipstream_funnel",
            "Why there is no step yet: the count of each line of `slipstream status`.",
            ["stage", "cause"],
        )
        self.paused = gauge("slipstream_training_paused", "1 while somebody has paused training.")
        self.schedule = gauge(
            "slipstream_training_schedule_seconds",
            "Seconds until trainer.schedule lets the trainer go on, at the earliest; 0: it may work.",
        )
        self.events = counter("slipstream_events", "Events posted by trainer and judge.", ["kind"])
        self.steps = counter("slipstream_training_steps", "Training steps told by the trainer.")
        self.step = {k: gauge(f"slipstream_training_{k}", text) for k, text in STEP_NUMBERS.items()}

    def request(self, request: web.Request, status: int, seconds: float) -> None:
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "other"
        method = request.method if request.method in ("GET", "POST", "PUT", "DELETE") else "other"
        self.requests.labels(route, method, str(status)).inc()
        if route != "/internal/live":
            self.seconds.labels(route).observe(seconds)

    def plugin_failed(self, name: str) -> None:
        """``name``: of an installed plug-in."""
        self._plugin_errors.labels(name).inc()

    def event(self, event: Event) -> None:
        """What trainer and judge say of themselves."""
        kind = event.kind if event.kind in self._kinds or len(self._kinds) < MAX_EVENT_KINDS else "other"
        self._kinds.add(kind)
        self.events.labels(kind).inc()
        self.of_batches.event(event)
        if event.kind != "step":
            return
        self.steps.inc()
        data = event.data
        if isinstance(mib := data.get("memory_mib"), int | float):
            data = {**data, "memory_bytes": mib * 2**20}
        for name, value in data.items():
            gauge = self.step.get(METRIC_ALIASES.get(name, name))
            if gauge is not None and isinstance(value, int | float):
                gauge.set(value)
