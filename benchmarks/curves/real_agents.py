"""Agents for the larger model: plain HTTP clients that work on the worlds' items, many at once, in several processes.

Each process obeys: `eval` (each held-out item once), `train` (items in groups of runs until it is told to stop), `end`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import multiprocessing.connection
import multiprocessing.synchronize
import statistics
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

__all__ = ["Agents", "Tally"]

MAX_TOKENS = 48
GROUP = 8
TIMEOUT = aiohttp.ClientTimeout(total=300)


@dataclass
class Tally:
    """What agents saw."""

    rewards: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """World → the reward of each episode, in the order in which they ended."""
    waits: list[float] = field(default_factory=list)
    """Seconds of each call."""
    failed: int = 0
    errors: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """What another process saw."""
        for name, rewards in other.rewards.items():
            self.rewards[name] += rewards
        self.waits += other.waits
        self.failed += other.failed
        self.errors = (self.errors + other.errors)[:5]

    def success(self) -> dict[str, float]:
        """Mean reward by world, and their mean."""
        by = {name: statistics.fmean(rewards) for name, rewards in sorted(self.rewards.items()) if rewards}
        return by | {"all": statistics.fmean(by.values()) if by else 0.0}

    def figures(self) -> dict[str, Any]:
        """Counts, and how long calls took."""
        waits = sorted(self.waits) or [0.0]
        return {
            "episodes": sum(map(len, self.rewards.values())),
            "calls": len(self.waits),
            "failed_calls": self.failed,
            "errors": self.errors,
            "call_p50_s": waits[len(waits) // 2],
            "call_p99_s": waits[int(len(waits) * 0.99)],
            "call_longest_s": waits[-1],
        }


class Worker:
    """The agents of one process."""

    def __init__(self, names: tuple[str, ...], model: str, agents: int) -> None:
        import worlds

        self.worlds = {name: worlds.WORLDS[name] for name in names}
        self.model, self.agents = model, agents

    async def call(self, http: aiohttp.ClientSession, body: dict[str, Any], tags: dict[str, str]) -> dict[str, Any]:
        """One model call → the assistant's message, as it goes into the history."""
        async with http.post("/v1/chat/completions", json=body, headers=tags) as reply:
            if reply.status != 200:
                raise RuntimeError(f"{reply.status}: {(await reply.text())[:300]}")
            message = json.loads(await reply.read())["choices"][0]["message"]
        kept = {"role": "assistant", "content": message.get("content")}
        return kept | ({"tool_calls": calls} if (calls := message.get("tool_calls")) else {})

    async def episode(self, http: aiohttp.ClientSession, name: str, item: Any, split: str, tally: Tally) -> None:
        """One episode of an item, and its reward."""
        episode = uuid.uuid4().hex
        tags = {"x-slipstream-episode": episode, "x-slipstream-task": item.id, "x-slipstream-split": split}
        conversation = self.worlds[name].start(item)
        try:
            while not conversation.done:
                body = {"model": self.model, "messages": conversation.messages, "max_tokens": MAX_TOKENS}
                if conversation.tools:
                    body["tools"] = conversation.tools
                began = time.monotonic()
                message = await self.call(http, body, tags)
                tally.waits.append(time.monotonic() - began)
                try:
                    conversation.act({**message, "content": message["content"] or ""})
                except (ValueError, TypeError, KeyError, AttributeError, IndexError):
                    break  # a call that no tool understands ends the episode
            reward = {"value": conversation.reward}
            async with http.post(f"/slipstream/v1/episodes/{episode}/rewards", json=reward) as reply:
                reply.raise_for_status()  # the reward ends the episode
        except (aiohttp.ClientError, RuntimeError, TimeoutError) as error:
            tally.failed += 1
            tally.errors.append(repr(error)[:300])
            await asyncio.sleep(0.5)  # an endpoint that is down is not hammered
            return
        tally.rewards[name].append(conversation.reward)

    async def run(self, url: str, todo: Iterator[tuple[str, Any]], split: str, stop: Any) -> Tally:
        """All of `todo`, or as much as there is time for."""
        tally = Tally()
        connector = aiohttp.TCPConnector(limit=0)

        async def lane(http: aiohttp.ClientSession) -> None:
            for name, item in todo:
                if stop.is_set():
                    return
                await self.episode(http, name, item, split, tally)

        async with aiohttp.ClientSession(url, timeout=TIMEOUT, connector=connector) as http:
            await asyncio.gather(*(lane(http) for _ in range(self.agents)))
        return tally

    def held_out(self, count: int, part: int, parts: int) -> Iterator[tuple[str, Any]]:
        """This process's part of `count` held-out items of each world."""
        for name, world in self.worlds.items():
            for item in itertools.islice(world.items("eval", 0), part, count, parts):
                yield name, item

    def endless(self, seed: int) -> Iterator[tuple[str, Any]]:
        """Items to train on, each for a group of runs, the worlds in turn."""
        items = {name: world.items("train", seed) for name, world in self.worlds.items()}
        while True:
            for name, source in items.items():
                item = next(source)
                yield from [(name, item)] * GROUP


def serve(
    pipe: multiprocessing.connection.Connection, stop: multiprocessing.synchronize.Event, part: int, parts: int,
    names: tuple[str, ...], model: str, agents: int, seed: int,
) -> None:  # fmt: skip
    """The loop of one process."""
    worker = Worker(names, model, agents)
    pipe.send("ready")
    rounds = 0
    while (order := pipe.recv())[0] != "end":
        what, url, count = order
        rounds += 1
        todo = worker.held_out(count, part, parts) if what == "eval" else worker.endless(seed + rounds * parts + part)
        pipe.send(asyncio.run(worker.run(url, todo, what, stop)))


class Agents:
    """Processes of agents."""

    def __init__(self, names: tuple[str, ...], model: str, *, agents: int, processes: int, seed: int = 0) -> None:
        context = multiprocessing.get_context("spawn")
        self.stop = context.Event()
        self.pipes, self.processes = [], []
        for part in range(processes):
            ours, theirs = context.Pipe()
            share = agents // processes + (part < agents % processes)
            arguments = (theirs, self.stop, part, processes, names, model, share, seed)
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def wait_ready(self) -> None:
        """Until all processes have loaded what they need. Raises ``EOFError`` where one died."""
        for pipe in self.pipes:
            pipe.recv()

    def held_out(self, url: str, count: int) -> Tally:
        """`count` held-out items of each world, once each."""
        self.stop.clear()
        return self._all("eval", url, count)

    def begin(self, url: str) -> None:
        """Work on training items until ``end``."""
        self.stop.clear()
        for pipe in self.pipes:
            pipe.send(("train", url, 0))

    def end(self) -> Tally:
        """Let episodes in flight end."""
        self.stop.set()
        return self._gathered()

    def close(self) -> None:
        """End the processes."""
        self.stop.set()
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            if process.is_alive():
                pipe.send(("end", "", 0))
                process.join(5)
                process.kill()

    def _all(self, what: str, url: str, count: int) -> Tally:
        for pipe in self.pipes:
            pipe.send((what, url, count))
        return self._gathered()

    def _gathered(self) -> Tally:
        whole = Tally()
        for pipe in self.pipes:
            whole.add(pipe.recv())
        return whole
