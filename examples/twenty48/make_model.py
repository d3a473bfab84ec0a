"""Make the small model of 2048: it has read the games of mostly clumsy players.

    python examples/twenty48/make_model.py OUT --device cuda

Games, weights and their order come from the seed. Where a player finds several directions equally good, the model learns all
of them at once. The last line of output is JSON: what the model scores on held-out games.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.hermes import END, encode, render
from common.making import Recipe, main
from common.pretrain import Row
from common.sampling import measure
from transformers import PreTrainedTokenizerFast

from twenty48.board import DIRECTIONS, Board, Game, Item, first_message, make_item, make_items, next_message, show
from twenty48.players import draw_player, play_expert
from twenty48.vocabulary import WORDS, make_tokenizer


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

    def __init__(self, item: Item) -> None:
        self.game = Game(item)
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


def figures_of(model: Any, tokenizer: PreTrainedTokenizerFast, seed: int, count: int) -> dict[str, float]:
    """What the model does with held-out games, in process."""
    held_out = list(islice(make_items("eval"), count))
    figures = measure(model, tokenizer, lambda i, _: Played(held_out[i]), items=count, k_items=count // 10, tokens=4)
    return {**figures, "expert": sum(map(play_expert, held_out)) / count}


RECIPE = Recipe(
    make_tokenizer,
    lambda: WORDS,
    make_rows,
    figures_of,
    rows=25_000,
    steps=1500,
    batch=256,
    seconds=120.0,
    layers=4,
    intermediate=384,
    measure=240,
)

if __name__ == "__main__":
    main(__doc__, RECIPE)
