"""The task of the two guessing games."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from common.task import Item, Missing, Played
from common.transcript import steps

from words.game import RIGHT, make_items
from words.game import Item as Pair
from words.players import play_expert

__all__ = ["TASK", "NodeAgent", "Words"]

FOLDER = Path(__file__).resolve().parent


class NodeAgent:
    """`agent.mjs` as one process that plays all games. It is told what to play, and says how each game went, in lines of JSON."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.numbers = itertools.count()
        self.waiting: dict[int, asyncio.Future[dict[str, object]]] = {}
        self.reader = asyncio.create_task(self.read())

    async def read(self) -> None:
        """Hand each line over to the game that it is about. When the process ends, all games that it owes fail."""
        assert self.process.stdout is not None
        try:
            async for line in self.process.stdout:
                told = json.loads(line)
                waiting = self.waiting.pop(told["run"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(told)
        finally:
            code = await self.process.wait()
            for waiting in self.waiting.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionError(f"the Node process ended with code {code}"))

    async def episode(
        self, item: Item, *, split: str = "train", tagged: bool = True, post_reward: bool = True
    ) -> Played:
        """One game. Raises ``ConnectionError`` with the agent's own words where it failed."""
        if self.reader.done():
            raise ConnectionError("the Node process has ended")
        assert self.process.stdin is not None
        run = next(self.numbers)
        told = self.waiting[run] = asyncio.get_running_loop().create_future()
        asked = {
            "run": run,
            "item": cast("Pair", item)._asdict(),
            "split": split,
            "tagged": tagged,
            "post_reward": post_reward,
        }
        self.process.stdin.write(json.dumps(asked).encode() + b"\n")
        try:
            await self.process.stdin.drain()
            played = await told
        finally:
            self.waiting.pop(run, None)
        if "error" in played:
            raise ConnectionError(str(played["error"]))
        return Played(float(cast("float", played["reward"])), int(cast("int", played["calls"])))

    async def close(self) -> None:
        """Tell the process that no more games come. One that goes on with old ones is stopped after two seconds."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), 2)
        except TimeoutError:
            self.process.terminate()
        await asyncio.gather(self.reader, return_exceptions=True)


class Words:
    """Find a word or a number from what is said of each guess."""

    name = "words"
    model = FOLDER / "model"
    rubric = "1 where the last guess is right, else 0. A run that finds it with fewer guesses is no better."

    def items(self, split: str, seed: int) -> Iterator[Pair]:
        """Words and numbers by turns."""
        return make_items(split, seed)

    def expert(self, items: Sequence[Item]) -> float:
        """Guess only what can still be right, and of that what leaves the fewest."""
        return sum(play_expert(cast("Pair", item)) for item in items) / max(1, len(items))

    def rule(self, transcript: str) -> float:
        """1 where the game answered a guess with "right", else 0. What the run itself says does not count."""
        return float(any(kind.startswith("tool result") and lines == [RIGHT] for kind, lines in steps(transcript)))

    async def open(self, base_url: str) -> NodeAgent:
        """The agent, which asks for the model by the task's name."""
        node = shutil.which("node")
        if node is None:
            raise Missing("node is not installed: install Node.js 20 or newer, then npm ci --prefix examples/words")
        if not (FOLDER / "node_modules" / "ai").is_dir():
            raise Missing("the Vercel AI SDK is not installed: npm ci --prefix examples/words")
        command = (node, str(FOLDER / "agent.mjs"), "--lines", "--base-url", base_url, "--model", self.name)
        return NodeAgent(await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE))


TASK = Words()
