"""The judge's Prometheus metrics (``slipstream_judge_…``), served on ``judge.metrics_port``."""

from __future__ import annotations

from functools import partial
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

SECONDS_BUCKETS = (0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 240)


class JudgeMetrics:
    def __init__(self) -> None:
        r = self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=r), partial(Gauge, registry=r)
        histogram = partial(Histogram, registry=r)
        p = "slipstream_judge_"
        self.groups = counter(p + "groups", "Groups, by how it went", ["outcome"])
        self.episodes = counter(p + "episodes", "Episodes scored, by mode", ["mode"])
        self.working = gauge(p + "groups_in_progress", "Groups being judged")
        self.calls = counter(p + "calls", "Calls of the judge's model, by how they went", ["outcome"])
        self.call_seconds = histogram(
            p + "call_seconds", "Seconds of a call that was answered", buckets=SECONDS_BUCKETS
        )
        self.function_calls = counter(
            p + "function_calls", "Groups that judge.function was given, by how it went", ["outcome"]
        )
        self.function_seconds = histogram(
            p + "function_seconds", "Seconds that judge.function took for a group", buckets=SECONDS_BUCKETS
        )
        self.tokens = counter(p + "tokens", "Tokens, by kind", ["kind"])
        self.cost = counter(p + "cost_dollars", "Dollars, as far as LiteLLM knows the price")
        self.repairs = counter(p + "repairs", "Answers that had to be asked for again")
        self.cache = counter(p + "cache", "Look-ups in the cache", ["result"])
        self.hit_rate = gauge(p + "cache_hit_rate", "Hits ÷ look-ups since the start")
        self.waiting = gauge(p + "budget_waiting", "1 while a budget makes the judge wait", ["budget"])
        self.spread = histogram(
            p + "vote_spread",
            "Standard deviation of an episode's votes",
            buckets=(0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5),
        )
        self.queue = gauge(p + "queue_groups", "Complete groups that lack a score")
        self.queue_age = gauge(p + "queue_age_seconds", "Age of the oldest complete group that lacks a score")
        self.lag = gauge(p + "lag_seconds", "Seconds that this copy would need for the queue at its recent rate")
        self.audits = counter(p + "audits", "Groups judged by the second model too", ["outcome"])
        self.agreement = gauge(p + "audit_agreement", "Mean rank correlation with the second model, last 200 audits")
        self.agent_correlation = gauge(
            p + "agent_correlation", "Within-group correlation with the agent's own reward, last 1000 episodes"
        )
        self.agent_pairs = gauge(p + "agent_correlation_episodes", "Episodes that the correlation is over")
        for name in ("scored", "failed", "postponed", "lost"):
            self.groups.labels(name)
        for name in ("calls_per_minute", "tokens_per_day", "dollars_per_day"):
            self.waiting.labels(name).set(0)
        for name in ("answered", "error"):
            self.calls.labels(name)
            self.function_calls.labels(name)
        self.episodes.labels("function")
        for name in ("prompt", "completion"):
            self.tokens.labels(name)
        for name in ("hit", "miss", "error"):
            self.cache.labels(name)

    def looked_up(self, result: str) -> None:
        self.cache.labels(result).inc()
        hits, misses = (self.cache.labels(x)._value.get() for x in ("hit", "miss"))
        self.hit_rate.set(hits / (hits + misses) if hits + misses else 0.0)

    def serve(self, port: int, host: str = "127.0.0.1") -> tuple[int, WSGIServer]:
        """Start the exporter's thread. Returns its port and what ends it (``shutdown()``)."""
        server, _thread = start_http_server(port, host, self.registry)
        return server.server_port, server
