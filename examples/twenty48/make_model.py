"""Make the small model of 2048: it has read the games of mostly clumsy players.

    python examples/twenty48/make_model.py OUT --device cuda

Games, weights and their order come from the seed. Where a player finds several directions equally good, the model learns all
of them at once. The last line of output is JSON: what the model scores on held-out games.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.hermes import END, encode, render
from common.pretrain import Row, gather, make_network, pack, save, train
from common.sampling import measure

from twenty48.board import DIRECTIONS, Board, Game, first_message, make_item, next_message, show
from twenty48.players import draw_player, play_expert
from twenty48.vocabulary import WORDS, make_tokenizer

LAYERS, INTERMEDIATE = 4, 384


class Spelling:
    """Token ids of a game's texts, as the chat template writes them."""

    def __init__(self) -> None:
        self.tokenizer = make_tokenizer()
        self.encode = functools.cache(lambda text: tuple(encode(self.tokenizer, text)))
        # One object for each set of directions: it travels between processes once for many rows.
        self.chances = functools.cache(lambda ways: {self.ways[way]: 1 / len(ways) for way in ways})
        self.ways = {way: self.encode(way)[0] for way in DIRECTIONS}

    def seen(self, board: Board) -> Iterator[int]:
        """Ids of a board. Its lines are remembered one by one: they are few, boards are many."""
        for index, line in enumerate(show(board).split("\n")):
            if index:
                yield from self.encode("\n")
            yield from self.encode(line)

    def row(self, seed: int) -> Row:
        """A whole game of one of the players."""
        game = Game(make_item("pretrain", seed % 100_000, seed // 100_000))
        rng = random.Random(seed)
        player = draw_player(rng)
        row = Row(render(self.tokenizer, [first_message(game.item, game.board)], ask=True), [])
        row.own += [False] * len(row.ids)
        while game.end is None:
            choices = player.choices(game.board, rng)
            row.soft.append((len(row.ids), self.chances(tuple(choices))))
            way = rng.choice(choices)
            row.ids += (self.ways[way], *self.encode(END))
            row.own += [True, True]
            game.play(way)
            if game.end is None:
                after = (
                    *self.encode("<|im_start|>user\n"),
                    *self.seen(game.board),
                    *self.encode(END + "<|im_start|>assistant\n"),
                )
                row.ids += after
                row.own += [False] * len(after)
        return row


spelling = functools.cache(Spelling)


def make_rows(seed: int, count: int) -> list[Row]:
    """`count` games. Seeds that `gather` gives are apart by one for each part of 250 games."""
    return [spelling().row(seed * 250 + index) for index in range(count)]


class Played:
    """One game as `common.sampling` plays it: board by board, as the agent does."""

    def __init__(self, index: int, run: int) -> None:
        self.game = Game(make_item("eval", index))
        self.messages: list[dict[str, Any]] = [first_message(self.game.item, self.game.board)]
        self.tools: list[dict[str, Any]] = []
        self.done = False
        self.reward = 0.0

    def act(self, message: dict[str, Any]) -> None:
        """Make the move that the message names."""
        self.messages.append(message)
        self.game.play(str(message["content"]).strip())
        self.done, self.reward = self.game.end is not None, self.game.reward
        if not self.done:
            self.messages.append(next_message(self.game.board))


def main() -> None:
    """Command line: train, then write the model in bf16 with its tokenizer to OUT."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--games", type=int, default=25_000)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seconds", type=float, default=120, help="training ends in time")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--measure", type=int, default=240, help="held-out games to measure with")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    began = time.monotonic()
    rows = gather(make_rows, count=args.games, seed=args.seed)
    tokenizer = make_tokenizer()
    model = make_network(tokenizer, WORDS, layers=LAYERS, intermediate=INTERMEDIATE)
    size = sum(p.numel() for p in model.parameters())
    data = pack(rows, args.device)
    print(
        f"{size:,} parameters, {len(rows)} games of up to {data.ids.shape[1]} tokens, {time.monotonic() - began:.0f} s"
    )
    curve = train(model, data, steps=args.steps, batch=args.batch, lr=args.lr, seed=args.seed, seconds=args.seconds)
    save(model, tokenizer, args.out)
    model.to(dtype=torch.bfloat16)
    figures = measure(model, tokenizer, Played, items=args.measure, k_items=args.measure // 10, tokens=4)
    expert = sum(play_expert(make_item("eval", i)) for i in range(args.measure)) / args.measure
    print(json.dumps({"parameters": size, "loss": curve[-1], **figures, "expert": expert}))


if __name__ == "__main__":
    main()
