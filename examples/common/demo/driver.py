"""Runs a task's agent, many episodes at once, and counts what it saw with its own eyes."""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from common.task import Agent, Item, Task
from slipstream.shared.progress import Progress

HELD_OUT = 256
"""Episodes on items that are never trained on, before and after."""
CONCURRENT_EPISODES = 32
GROUP_EPISODES = 8


@dataclass(slots=True)
class RewardSample:
    """Rewards of some episodes."""

    rewards: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return sum(self.rewards) / max(1, len(self.rewards))

    @property
    def error(self) -> float:
        """Standard error of the mean; 0 for fewer than two."""
        n = len(self.rewards)
        if n < 2:
            return 0.0
        return math.sqrt(sum((r - self.mean) ** 2 for r in self.rewards) / (n - 1) / n)


@dataclass(slots=True)
class DriverTally:
    """What the driver saw."""

    calls: int = 0
    failed: int = 0
    episodes: int = 0


class TaskDriver:
    """``CONCURRENT_EPISODES`` episodes at once, groups of ``GROUP_EPISODES`` runs of each training item."""

    def __init__(self, task: Task, agent: Agent, seed: int, *, post_reward: bool = True) -> None:
        self.task, self.agent, self.seed = task, agent, seed
        self.tally = DriverTally()
        self.post_reward = post_reward
        """False: the agent posts no reward, a judge has to score."""
        self._training = task.items("train", seed)

    async def episode(self, item: Item, split: str) -> float | None:
        """The reward of one episode, or None where it failed: that is told and counted."""
        try:
            played = await self.agent.episode(item, split=split, post_reward=self.post_reward)
        except Exception as error:
            self.tally.failed += 1
            print(f"\nan episode failed: {error!r}", file=sys.stderr)
            await asyncio.sleep(0.2)  # an endpoint that is down is not hammered
            return None
        self.tally.calls += played.calls
        self.tally.episodes += split == "train"
        return played.reward

    def held_out_items(self) -> list[Item]:
        """The items that ``held_out`` measures on: ``HELD_OUT`` of them, from the start again where there are fewer."""
        return list(itertools.islice(self.task.items("eval", self.seed), HELD_OUT))

    async def held_out(self, name: str, progress: Progress) -> RewardSample:
        """One episode of each held-out item, at the agent's own temperature."""
        sample = RewardSample()
        items = self.held_out_items()
        left = iter(items)

        async def worker() -> None:
            for item in left:
                if (reward := await self.episode(item, "eval")) is not None:
                    sample.rewards.append(reward)
                progress.update(
                    f"held-out items, {name}", len(sample.rewards), len(items), reward=round(sample.mean, 3)
                )

        await asyncio.gather(*(worker() for _ in range(CONCURRENT_EPISODES)))
        return sample

    async def work(self, stop: asyncio.Event) -> None:
        """Training items, without end until ``stop``. Called again, it goes on with those that follow."""

        def runs() -> Iterator[Item]:
            for item in self._training:
                for _ in range(GROUP_EPISODES):
                    if stop.is_set():
                        return
                    yield item

        items = runs()

        async def worker() -> None:
            for item in items:
                await self.episode(item, "train")

        await asyncio.gather(*(worker() for _ in range(CONCURRENT_EPISODES)))
