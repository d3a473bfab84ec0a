"""Plays 2048 with the model behind an OpenAI-compatible endpoint: the stock client, one conversation a game, a word a move.

    OPENAI_BASE_URL=http://127.0.0.1:8100/v1 python examples/twenty48/agent.py --episodes 64 --concurrency 32
    OPENAI_BASE_URL=… python examples/twenty48/agent.py --model Qwen/Qwen3-4B --size 4 --target 128

The conversation grows by a board and a move each turn, and all of it is sent each time. The agent knows nothing of
Slipstream but what its README says: three headers, and a reward that is posted at the end. `--untagged` leaves both out.
Elsewhere the headers mean nothing, and nobody wants the reward.
"""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
from openai import AsyncOpenAI

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.task import Played

from twenty48.board import SIZE, TARGET, Game, Item, first_message, next_message, read_move

__all__ = ["Player", "Result"]


class Result(NamedTuple):
    """One finished game. `end` is "won", "stuck" or "wasted"."""

    item: Item
    reward: float
    calls: int
    end: str


class Player:
    """Plays games through one client. Defaults: OPENAI_BASE_URL, OPENAI_API_KEY."""

    def __init__(self, base_url: str | None = None, *, model: str = "model", connections: int = 128) -> None:
        self.model = model
        self.client = AsyncOpenAI(
            base_url=base_url or os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8100/v1"),
            api_key=os.environ.get("OPENAI_API_KEY") or "none",
            http_client=httpx.AsyncClient(limits=httpx.Limits(max_connections=connections), timeout=120),
        )

    async def play(self, item: Item, *, split: str = "train", tagged: bool = True, post_reward: bool = True) -> Result:
        """One game. Where it is tagged, headers name the run, and its reward is posted (or only that it is done)."""
        episode = uuid.uuid4().hex
        tags = {"x-slipstream-episode": episode, "x-slipstream-task": item.id, "x-slipstream-split": split}
        game = Game(item)
        messages: list[Any] = [first_message(item, game.board)]
        while game.end is None:
            reply = await self.client.chat.completions.create(
                model=self.model, messages=messages, extra_headers=tags if tagged else None
            )
            said = reply.choices[0].message.content
            game.play(read_move(said))
            messages += [{"role": "assistant", "content": said}, next_message(game.board)]
        if tagged:
            await self.finish(episode, game.reward if post_reward else None)
        return Result(item, game.reward, game.turns, game.end)

    async def episode(
        self, item: Item, *, split: str = "train", tagged: bool = True, post_reward: bool = True
    ) -> Played:
        """One game, as tasks count it."""
        result = await self.play(item, split=split, tagged=tagged, post_reward=post_reward)
        return Played(result.reward, result.calls)

    async def finish(self, episode: str, reward: float | None) -> None:
        """Say how the game went, or (None) only that it has ended. A server that has no such route is no failure."""
        root = str(self.client.base_url).rstrip("/").removesuffix("/v1")
        path, body = ("done", {}) if reward is None else ("rewards", {"value": reward})
        try:
            await self.client.post(f"{root}/slipstream/v1/episodes/{episode}/{path}", cast_to=httpx.Response, body=body)
        except openai.NotFoundError:
            return

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()


if __name__ == "__main__":
    from common.command import arguments, main

    from twenty48.task import Twenty48

    options = arguments(__doc__)
    options.add_argument("--size", type=int, default=SIZE, help="rows of the board")
    options.add_argument("--target", type=int, default=TARGET, help="the tile that wins")
    sys.exit(main(lambda args: Twenty48(args.size, args.target), options))
