"""What is told of a step: an event, a line for the log, figures for Prometheus and for TRL's ``report_to``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from slipstream.contract import Event
from slipstream_trainer.timing import STEP_PARTS


def clean(value: Any) -> Any:
    """JSON that has no NaN and no infinities, floats with six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [clean(v) for v in value]
    return value


def event(kind: str, **data: object) -> Event:
    return Event(kind=kind, data=clean(data))


def line(data: Mapping[str, object]) -> str:
    """A step in one line."""

    def figure(name: str, form: str) -> str:
        value = data.get(name)
        return f"{name} {value:{form}}" if isinstance(value, int | float) else ""

    parts = [
        f"step {data.get('step')}",
        str(data.get("adapter") or ""),
        figure("reward", ".3f"),
        figure("loss", ".4g"),
        figure("kl", ".3g"),
        figure("learning_rate", ".2e"),
        figure("entropy", ".3g"),
        figure("logprob_gap", ".3g"),
        figure("tokens", "d"),
        figure("tokens_computed", "d"),
        figure("seconds", ".2f"),
    ]
    return ", ".join(p for p in parts if p)


MAX_REASONS = 30
STEP_GAUGES = {
    "reward": "Mean reward of the newest batch.",
    "reward_std": "Its standard deviation.",
    "loss": "Loss of the newest step.",
    "kl": "KL to the adapter before, nats a token.",
    "kl_target": "KL that the newest step aimed at, nats a token.",
    "kl_engine": "KL of the engine's to the trainer's policy before the step, nats a token.",
    "entropy": "Mean entropy of the policy on the batch, nats.",
    "grad_norm": "Gradient norm before clipping.",
    "ratio": "Mean ratio of the trainer's to the engine's probabilities.",
    "logprob_gap": "Mean absolute difference of the trainer's and the engine's log-probabilities.",
    "engine_gap": "The same over the tokens that the trainer's own weights sampled.",
    "clipped": "Share of tokens clipped.",
    "truncated": "Share of tokens whose importance weight was capped.",
    "staleness": "Mean versions behind the live adapter.",
    "tokens_per_second": "Computed tokens a second.",
    "padding": "Share of computed tokens that is padding.",
    "saving": "Share of tokens that merging and trees spare, of a sequence for each call.",
    "continuations": "Share of later calls that continue an earlier one token by token.",
    "words": "Pieces of feedback in the newest step that had any.",
    "words_change": "What these words changed in a token's log-probability, nats, absolute, mean.",
    "words_kl": "How far what the model wants with these words is from what it does without: KL, nats a token, mean.",
    "words_refused": "Of these, replies that the words replace and do not correct (trainer.words_kl).",
    "learning_rate": "Learning rate of the newest step.",
    "memory_bytes": "Peak memory.",
    "hold_seconds": "Time that the engine gave way for the newest step (engine.share).",
}


class Metrics(Collector):
    def __init__(self) -> None:
        self.tenants: dict[str, Metrics] = {}
        r = self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=r), partial(Gauge, registry=r)
        histogram = partial(Histogram, registry=r)
        self.batches = counter("slipstream_trainer_batches", "Batches by outcome (step, skipped, undone).", ["outcome"])
        self.tokens = counter("slipstream_trainer_tokens", "Tokens trained on.")
        self.untrainable = counter(
            "slipstream_trainer_untrainable",
            "Sampled choices that were left out, by reason; runs, of groups with equal rewards.",
            ["reason"],
        )
        self.seconds = histogram(
            "slipstream_trainer_step_seconds", "Time of a batch.", buckets=(0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
        )
        self.step = gauge("slipstream_trainer_step", "Steps taken and kept.")
        self.waiting = gauge(
            "slipstream_trainer_waiting", "1 while another trainer learns for the model, and this one waits for it."
        )
        self.unreachable = counter("slipstream_trainer_proxy_unavailable", "Requests that the proxy did not answer.")
        self.failures = counter("slipstream_trainer_failures", "Failures after which the trainer recovered.")
        self._reasons = {"rolled_back"}
        self.untrainable.labels("rolled_back")
        for outcome in ("step", "skipped", "undone"):
            self.batches.labels(outcome)
        self.part_seconds = gauge("slipstream_trainer_part_seconds", "Time of each part of the newest batch.", ["part"])
        for part in STEP_PARTS:
            self.part_seconds.labels(part)
        self.gauges = {n: gauge(f"slipstream_trainer_{n}", text) for n, text in STEP_GAUGES.items()}

    def serve(self, host: str, port: int) -> int:
        """→ The port. With the figures of tenants, each with its label."""
        together = CollectorRegistry()
        together.register(self)
        server, _ = start_http_server(port, host, together)
        return int(server.server_port)

    def collect(self) -> Iterable[Metric]:
        found: dict[str, Metric] = {}
        for tenant, metrics in {"": self, **self.tenants}.items():
            for one in metrics.registry.collect():
                family = found.setdefault(one.name, Metric(one.name, one.documentation, one.type))
                family.samples += [
                    s._replace(labels={**s.labels, "tenant": tenant}) if tenant else s for s in one.samples
                ]
        return found.values()

    def times(self, data: Mapping[str, object]) -> None:
        """Seconds of a batch's parts, as far as they are known."""
        for part in STEP_PARTS:
            if isinstance(seconds := data.get(f"{part}_seconds"), float):
                self.part_seconds.labels(part).set(seconds)

    def note(self, outcome: str, step: int, data: Mapping[str, object]) -> None:
        self.times(data)
        self.batches.labels(outcome).inc()
        self.step.set(step)
        if isinstance(mib := data.get("memory_mib"), int | float):
            data = {**data, "memory_bytes": mib * 2**20}
        for name, gauge in self.gauges.items():
            value = data.get(name)
            if isinstance(value, int | float):
                gauge.set(value)
        if isinstance(seconds := data.get("seconds"), float):
            self.seconds.observe(seconds)
        if outcome == "step" and isinstance(tokens := data.get("tokens"), int):
            self.tokens.inc(tokens)
        left_out = data.get("untrainable")
        for reason, count in left_out.items() if isinstance(left_out, dict) else ():
            self.untrainable.labels(self._known(str(reason))).inc(count)

    def _known(self, reason: str) -> str:
        """The first ``MAX_REASONS`` have series of their own."""
        if reason in self._reasons or len(self._reasons) < MAX_REASONS:
            self._reasons.add(reason)
            return reason
        return "other"
