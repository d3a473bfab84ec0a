"""Conformance: what the page and the metrics compare."""

from __future__ import annotations

from random import Random

import pytest
from tests.support.records import NOW, call, group, reward

from slipstream_proxy.store.read.status import _shape


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


def test_a_reward_that_follows_the_length_within_each_task_is_seen(store) -> None:
    """Over all runs the tasks' own lengths and rewards hide it."""
    records, random = [], Random(3)
    for task in range(6):
        usual, worth = random.randrange(10, 60), random.random() * 40
        for n in range(8):
            tokens = usual + n
            said = ({"role": "assistant", "content": "x"}, [4] * tokens, [-0.5] * tokens)
            name = f"t{task}-{n}"
            records += [call(name, task=f"t{task}", done=True, choices=[said]), reward(name, worth - n)]
    store.ingest(records, {})
    with store.db.read() as tx:
        found = _shape(tx, 99.0)
        assert found is not None and found.n == 48
        ((over_all,),) = tx.all("SELECT corr(reward, CAST(completion_tokens AS FLOAT8)) FROM t_episodes")
    assert found.length == pytest.approx(-1.0)
    assert abs(over_all) < 0.9
