"""Conformance: what the page and the metrics compare."""

from __future__ import annotations

import pytest
from tests.support.records import NOW, call, group, reward


def test_success_by_adapter(store):
    store.ingest(
        [
            *group("t1", adapter="m@1"),
            *group("t2", adapter="m@2", value=0.0, start=NOW + 5),
            *group("e", adapter="m@1", split="eval"),
        ],
        {},
    )
    rows = store.statistics.success_by_adapter()
    assert [(r["adapter"], r["split"], r["episodes"], r["mean"]) for r in rows] == [
        ("m@1", "eval", 2, 1.5), ("m@1", "train", 2, 1.5), ("m@2", "train", 2, 0.5),
    ]  # fmt: skip
    assert rows[0]["std"] == pytest.approx(0.5**0.5)


def test_rewards_by_source(store):
    store.ingest(
        [*group("t1", adapter="m@1"), reward("a-1", 5.0, source="judge"), *group("t2", adapter="m@2", n=1)], {}
    )
    store.ingest(
        [
            call("solo", adapter="m@1"),
            reward("solo", 0.0, source="user"),
            reward("solo", 1.0, source="user"),
            reward("unknown", 1.0),
        ],
        {},
    )
    store.ingest([reward("solo", 0.25, source="judge")], {})
    found = {
        (r["source"], r["adapter"], r["split"]): (r["count"], r["mean"], r["std"])
        for r in store.statistics.rewards_by_source()
    }
    assert found["user", "m@1", "train"] == (1, 1.0, 0.0), "a corrected reward counts once"
    assert found["judge", "m@1", "train"][:2] == (1, 0.25), "an unknown episode has no adapter"
    assert set(found) == {
        ("agent", "m@1", "train"),
        ("agent", "m@2", "train"),
        ("judge", "m@1", "train"),
        ("user", "m@1", "train"),
    }
    count, mean, std = found["agent", "m@1", "train"]
    assert (count, mean, std) == (2, 1.5, pytest.approx(0.5**0.5))
