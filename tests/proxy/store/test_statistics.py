"""Conformance: what the page and the metrics compare."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.support.records import NOW, call, group, reward

from slipstream_proxy.store.read.reward_shape import reward_shape


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
        found = reward_shape(tx, 99.0, 0.0)
        assert found is not None and found.n == 48
        ((over_all,),) = tx.all("SELECT corr(reward, CAST(completion_tokens AS FLOAT8)) FROM t_episodes")
    assert found.length == pytest.approx(-1.0)
    assert abs(over_all) < 0.9


def shape_of(store, rewards, tasks=8):
    """Of 64 runs of other lengths, the oldest first."""
    random, records = Random(1), []
    lengths = [random.randrange(2, 60) for _ in range(64)]
    for n, tokens in enumerate(lengths):
        said = ({"role": "assistant", "content": "x"}, [4] * tokens, [-0.5] * tokens)
        opened = call(f"r{n}", task=f"t{n % tasks}", done=True, at=NOW + n, choices=[said])
        records += [opened, reward(f"r{n}", float(rewards(n, tokens)))]
    store.ingest(records, {})
    with store.db.read() as tx:
        ((best, worst),) = tx.all("SELECT max(reward), min(reward) FROM t_episodes")
        return reward_shape(tx, best, worst)


@pytest.mark.parametrize(
    ("rewards", "follows"),
    [
        (lambda n, tokens: tokens < 30, -1.0),
        (lambda n, tokens: 1 / tokens, -1.0),
        (lambda n, tokens: tokens**4, 1.0),
        (lambda n, tokens: n % 2, None),
        (lambda n, tokens: n == 3, None),
    ],
)
def test_a_reward_that_is_a_function_of_the_length(store, rewards, follows):
    length = shape_of(store, rewards).length
    assert length == pytest.approx(follows) if follows else abs(length or 0.0) < 0.9


def test_the_best_reward_is_that_of_the_task(store):
    found = shape_of(store, lambda n, _: 0 if n in (3, 30) else 10 if n % 8 == 0 else 1)
    assert (found.at_best, found.high) == (62, 10)


def test_tasks_that_always_fail_are_not_at_their_best(store):
    assert shape_of(store, lambda n, _: n in (0, 8)).at_best == 2


def test_a_reward_that_broke(store):
    found = shape_of(store, lambda n, _: n == 0)
    assert (found.same, found.newest, found.at_best) == (63, 0.0, 1)


def test_runs_of_one_length_whose_rewards_differ_speak_against_the_length(store):
    """Most runs are equally long: what their rewards follow is something else."""
    lengths = [20] * 48 + [30, 31, 32, 33, 34, 35, 36, 37] * 2
    records: list[Any] = []
    for n, tokens in enumerate(lengths):
        said = ({"role": "assistant", "content": "x"}, [4] * tokens, [-0.5] * tokens)
        records += [call(f"r{n}", task=f"t{n % 8}", done=True, at=NOW + n, choices=[said])]
        records += [reward(f"r{n}", float(tokens == 20 and n % 3 > 0))]
    store.ingest(records, {})
    with store.db.read() as tx:
        found = reward_shape(tx, 1.0, 0.0)
    assert found is not None and found.length is not None and abs(found.length) < 0.9
