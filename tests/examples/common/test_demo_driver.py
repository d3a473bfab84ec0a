"""The driver, on a task of its own."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
from common.demo.driver import CONCURRENT_EPISODES, GROUP_EPISODES, HELD_OUT, RewardSample, TaskDriver

from slipstream.shared.progress import Progress


class Number(NamedTuple):
    id: str


class Once(NamedTuple):
    reward: float
    calls: int


@dataclass
class Numbers:
    """Even items are worth 1. Every tenth episode fails where `fails`. It is its own agent."""

    fails: bool = False
    name: str = "numbers"
    model: Path = Path("model")
    rubric: str = ""

    def __post_init__(self):
        self.seen: list[tuple[str, str, bool]] = []
        self.at_once = self.most = 0

    def items(self, split, seed):
        return (Number(f"{split}-{seed}-{i}") for i in itertools.count())

    def expert(self, items):
        return 1.0

    def rule(self, transcript):
        return 0.0

    async def open(self, base_url):
        return self

    async def episode(self, item, *, split="train", tagged=True, post_reward=True):
        self.seen.append((item.id, split, post_reward))
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        number = int(item.id.rsplit("-", 1)[1])
        if self.fails and number % 10 == 0:
            raise ConnectionError("gone")
        return Once(float(number % 2 == 0), 2)

    async def close(self):
        pass


async def test_each_held_out_item_is_played_once() -> None:
    task = Numbers()
    driver = TaskDriver(task, task, 5)
    sample = await driver.held_out("base", Progress())
    assert sorted(task.seen) == sorted((item.id, "eval", True) for item in driver.held_out_items())
    assert len(sample.rewards) == HELD_OUT
    assert sample.mean == 0.5
    assert sample.error == pytest.approx(math.sqrt(0.25 / (HELD_OUT - 1)))
    assert (driver.tally.calls, driver.tally.failed) == (2 * HELD_OUT, 0)
    assert task.most == CONCURRENT_EPISODES


async def test_training_items_are_run_in_groups_until_the_stop() -> None:
    task, stop = Numbers(), asyncio.Event()
    driver = TaskDriver(task, task, 5, post_reward=False)
    working = asyncio.create_task(driver.work(stop))
    while driver.tally.episodes < 10 * GROUP_EPISODES:
        await asyncio.sleep(0)
    stop.set()
    await asyncio.wait_for(working, 5)
    runs = Counter(item for item, _, _ in task.seen)
    assert [runs[f"train-5-{i}"] for i in range(9)] == [GROUP_EPISODES] * 9
    assert {(split, posted) for _, split, posted in task.seen} == {("train", False)}
    played, stop = set(runs), asyncio.Event()
    task.seen.clear()
    working = asyncio.create_task(driver.work(stop))
    await asyncio.sleep(0.05)
    stop.set()
    await asyncio.wait_for(working, 5)
    assert task.seen
    assert not played & {item for item, _, _ in task.seen}, "it goes on with items that follow"


async def test_an_episode_that_fails_is_counted_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    task = Numbers(fails=True)
    driver = TaskDriver(task, task, 0)
    sample = await driver.held_out("base", Progress())
    assert driver.tally.failed == 26
    assert len(sample.rewards) == HELD_OUT - 26
    assert "an episode failed: ConnectionError('gone')" in capsys.readouterr().err


@pytest.mark.parametrize(("rewards", "mean"), [([], 0.0), ([1.0], 1.0)])
def test_too_few_rewards_have_no_error(rewards: list[float], mean: float) -> None:
    sample = RewardSample(rewards)
    assert (sample.mean, sample.error) == (mean, 0.0)
