"""Plays 2048 with the model behind an OpenAI-compatible endpoint: the stock client, one conversation a game, a word a move.

    OPENAI_BASE_URL=http://127.0.0.1:8100/v1 python examples/twenty48/agent.py --games 64 --concurrency 32
    OPENAI_BASE_URL=… python examples/twenty48/agent.py --model Qwen/Qwen3-4B --size 4 --target 128

The conversation grows by a board and a move each turn, and all of it is sent each time. The agent knows nothing of
Slipstream but what its README says: three headers, and a reward that is posted at the end. `--untagged` leaves both out.
Elsewhere the headers mean nothing, and nobody wants the reward.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
from openai import AsyncOpenAI

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from twenty48.board import SIZE, TARGET, Game, Item, first_message, make_items, next_message, read_move

__all__ = ["Player", "Result", "play_all"]


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


async def play_all(
    player: Player, items: Iterator[Item], *, concurrency: int, split: str = "train", tagged: bool = True
) -> tuple[list[Result], list[Exception]]:
    """Play games, `concurrency` at a time. Returns them, and the errors that ended others."""
    played: list[Result] = []
    failed: list[Exception] = []

    async def worker() -> None:
        for item in items:
            try:
                played.append(await player.play(item, split=split, tagged=tagged))
            except (openai.OpenAIError, httpx.HTTPError) as error:
                failed.append(error)
                print(f"a game failed: {error!r}", file=sys.stderr, flush=True)
                await asyncio.sleep(0.2)  # an endpoint that is down is not hammered
                continue
            if len(played) % 64 == 0:
                last = played[-256:]
                won = sum(result.end == "won" for result in last) / len(last)
                print(f"{len(played)} games, won of the last {len(last)}: {won:.2f}", file=sys.stderr, flush=True)

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return played, failed


async def run(args: argparse.Namespace) -> int:
    """Play what the command line asks for. Returns the exit code: 1 when a game failed."""
    player = Player(args.base_url, model=args.model, connections=args.concurrency + 8)
    each = make_items(args.split, args.seed, size=args.size, target=args.target)
    items = itertools.chain.from_iterable(itertools.repeat(item, args.runs) for item in each)
    began = time.monotonic()
    played, failed = await play_all(
        player,
        itertools.islice(items, args.games),
        concurrency=args.concurrency,
        split=args.split,
        tagged=not args.untagged,
    )
    await player.close()
    count = max(1, len(played))
    figures = {
        "games": len(played),
        "failed": len(failed),
        "reward": round(sum(result.reward for result in played) / count, 4),
        "won": round(sum(result.end == "won" for result in played) / count, 4),
        "turns": round(sum(result.calls for result in played) / count, 1),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(figures))
    return 1 if failed else 0


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="of the endpoint, with /v1; default: OPENAI_BASE_URL")
    parser.add_argument("--model", default="model", help="the name that the endpoint serves")
    parser.add_argument("--games", type=int, help="default: until stopped")
    parser.add_argument("--runs", type=int, default=8, help="games of one item in a row")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--size", type=int, default=SIZE, help="rows of the board")
    parser.add_argument("--target", type=int, default=TARGET, help="the tile that wins")
    parser.add_argument("--split", choices=("train", "eval"), default="train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--untagged", action="store_true", help="send no header and post no reward")
    try:
        return asyncio.run(run(parser.parse_args()))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
