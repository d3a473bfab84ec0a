"""Metrics of what was ingested: tokens of calls, and rewards by who gave them."""

from __future__ import annotations

from collections import Counter as Counted
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from slipstream_proxy.data.observe.exposition import operation
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.store.values import RecordedCall

if TYPE_CHECKING:
    from slipstream_proxy.control.spool_reader import Item

ADAPTERS = 50
SOURCES = 10
REWARDED = 20
"""Adapters, the newest, of which rewards are told by source."""
OTHER = "other"
DIRECTIONS = ("in", "out")
KINDS = ("input", "output")
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
        for direction, kind, count in zip(DIRECTIONS, KINDS, tokens_of(row), strict=True):
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
        if len(self._adapters) > ADAPTERS:
            oldest = next(iter(self._adapters))
            del self._adapters[oldest]
            for direction in DIRECTIONS:
                self.tokens.labels(OTHER, direction).inc(self.tokens.labels(oldest, direction)._value.get())
                self.tokens.remove(oldest, direction)


class RewardMetrics:
    """Number, mean and spread of the rewards of each source, by adapter and split."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["source", "adapter", "split"]
        self.count = Gauge(
            "slipstream_source_rewards", "Rewards of a source, corrected ones once.", labels, registry=registry
        )
        self.mean = Gauge("slipstream_source_reward_mean", "Mean reward of a source.", labels, registry=registry)
        self.std = Gauge(
            "slipstream_source_reward_std",
            "Spread (standard deviation) of a source's rewards.",
            labels,
            registry=registry,
        )

    def look(self, rows: Sequence[JsonObject], versions: dict[str, int]) -> None:
        """``rows``: of ``statistics.rewards_by_source``. Only the most frequent sources and newest adapters count."""
        for gauge in (self.count, self.mean, self.std):
            gauge.clear()
        by_source: dict[str, int] = {}
        for row in rows:
            by_source[row["source"]] = by_source.get(row["source"], 0) + row["count"]
        sources = set(sorted(by_source, key=lambda s: -by_source[s])[:SOURCES])
        adapters = set(sorted({r["adapter"] for r in rows}, key=lambda a: versions.get(a, 0))[-REWARDED:])
        for row in rows:
            if row["source"] in sources and row["adapter"] in adapters:
                labels = (str(row["source"])[:80], str(row["adapter"]), str(row["split"]))
                self.count.labels(*labels).set(row["count"])
                self.mean.labels(*labels).set(row["mean"])
                self.std.labels(*labels).set(row["std"])
