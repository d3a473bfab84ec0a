from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.records import call

from slipstream_proxy.control.observe.metrics import (
    MAX_ADAPTER_SERIES,
    MAX_REWARDED_ADAPTERS,
    MAX_SOURCE_SERIES,
    CallMetrics,
    RewardMetrics,
    tokens_of,
)


def samples(registry, name):
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return [(s.labels, s.value) for f in families for s in f.samples if s.name == name]


def test_tokens_are_ids_or_what_the_engine_said():
    row = call("e")
    own = tokens_of(row)
    assert own == (len(row.parsed.prompt_ids), sum(len(c.completion_ids) for c in row.parsed.choices)) and min(own) > 0
    row.head.extra["usage"] = (40, None)
    assert tokens_of(row) == (40, 0)


def test_adapters_cannot_flood_it():
    registry = CollectorRegistry()
    metrics = CallMetrics(registry)
    rows = []
    for n in range(2 * MAX_ADAPTER_SERIES):
        row = call(f"e{n}")
        row.head.adapter, row.head.trained = f"m@{n}", "m"
        rows.append(row)
    metrics.ingested(rows)
    found = samples(registry, "slipstream_tokens_total")
    assert len(found) == 2 * (MAX_ADAPTER_SERIES + 1)
    each = sum(tokens_of(rows[0]))
    assert sum(v for _, v in found) == 2 * MAX_ADAPTER_SERIES * each
    assert sum(v for labels, v in found if labels["adapter"] == "other") == MAX_ADAPTER_SERIES * each


def test_external_and_base_calls_have_labels_of_their_own():
    registry = CollectorRegistry()
    external, base = call("a"), call("b")
    external.head.trained, external.head.external, external.head.adapter = None, True, "anything a stranger says"
    base.head.trained, base.head.adapter = None, "some-model"
    CallMetrics(registry).ingested([external, base])
    assert {labels["adapter"] for labels, _ in samples(registry, "slipstream_tokens_total")} == {"external", "base"}


def test_sources_cannot_flood_it():
    registry = CollectorRegistry()
    rows = [
        {"source": f"s{n}", "adapter": f"m@{a}", "split": "train", "count": 100 - n, "mean": 0.5, "std": 0.25}
        for n in range(3 * MAX_SOURCE_SERIES)
        for a in range(2 * MAX_REWARDED_ADAPTERS)
    ]
    metrics = RewardMetrics(registry)
    versions = {f"m@{a}": a for a in range(2 * MAX_REWARDED_ADAPTERS)}
    metrics.look(rows, versions)
    found = samples(registry, "slipstream_source_reward_mean")
    assert {labels["source"] for labels, _ in found} == {f"s{n}" for n in range(MAX_SOURCE_SERIES)}, (
        "the most frequent ones"
    )
    assert {versions[labels["adapter"]] for labels, _ in found} == set(
        range(MAX_REWARDED_ADAPTERS, 2 * MAX_REWARDED_ADAPTERS)
    ), "the newest ones"
    metrics.look([], versions)
    assert samples(registry, "slipstream_source_rewards") == []
