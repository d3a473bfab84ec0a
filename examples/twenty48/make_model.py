"""Make the small model of 2048: it has read the games of mostly clumsy players.

    python examples/twenty48/make_model.py OUT --device cuda

Games, lessons, weights and their order come from the seed. The model learns the chances of all directions that a player could
have taken, not only the one that it took. The last line of output is JSON: what the model scores on held-out games, and how
often it is right in held-out lessons (`changes`, `merges`).
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from common.hermes import END, encode
from common.making import HELD_OUT_LESSONS, LESSONS, Recipe, main
from common.pretrain import Row, pack
from common.sampling import keeping, measure
from transformers import PreTrainedTokenizerFast

from twenty48.board import DIRECTIONS, Board, Game, Item, first_message, make_item, make_items, next_message, show
from twenty48.lessons import CHANGES, draw_lesson
from twenty48.players import NOBODY, Player, draw_player, play_expert
from twenty48.vocabulary import WORDS, make_tokenizer


class Spelling:
    """Token ids of a game's texts, as the chat template writes them."""

    def __init__(self) -> None:
        self.tokenizer = make_tokenizer()
        self.encode = functools.cache(lambda text: tuple(encode(self.tokenizer, text)))
        self.ways = {way: self.encode(way)[0] for way in DIRECTIONS}
        # One object for each set of chances: it travels between processes once for many rows.
        self.chances = functools.cache(lambda pairs: {self.ways[way]: chance for way, chance in pairs})

    def seen(self, board: Board) -> Iterator[int]:
        """Ids of a board. Its lines are remembered one by one: they are few, boards are many."""
        for index, line in enumerate(show(board).split("\n")):
            if index:
                yield from self.encode("\n")
            yield from self.encode(line)

    def begun(self, question: str) -> Row:
        """A conversation up to the first board."""
        ids = list(self.encode(f"<|im_start|>user\n{question}\n"))
        return Row(ids, [False] * len(ids))

    def ask(self, row: Row, board: Board) -> None:
        """Show a board: the first, or one after a move."""
        before = self.encode("<|im_start|>user\n") if row.soft else ()
        shown = (*before, *self.seen(board), *self.encode(END + "<|im_start|>assistant\n"))
        row.ids += shown
        row.own += [False] * len(shown)

    def answer(self, row: Row, way: str, chances: Mapping[str, float]) -> None:
        """Say a direction, where each of these could as well have been said."""
        row.soft.append((len(row.ids), self.chances(tuple(chances.items()))))
        row.ids += (self.ways[way], *self.encode(END))
        row.own += [True, True]

    def row(self, seed: int, player: Player | None = None) -> Row:
        """A whole game of a player; None: of one of the clumsy ones."""
        game = Game(make_item("pretrain", seed % 100_000, seed // 100_000))
        rng = random.Random(seed)
        player = player or draw_player(rng)
        row = self.begun(game.item.question)
        while game.end is None:
            way = rng.choice(player.choices(game.board, rng))
            self.ask(row, game.board)
            self.answer(row, way, player.chances(game.board))
            game.play(way)
        return row

    def lesson(self, seed: int) -> Row:
        """A lesson. Where several answers are right, one of them is said."""
        rng = random.Random(seed)
        lesson = draw_lesson(seed)
        row = self.begun(lesson.question)
        for board, right in lesson.boards:
            self.ask(row, board)
            self.answer(row, rng.choice(right), dict.fromkeys(right, 1 / len(right)))
        return row


spelling = functools.cache(Spelling)


def make_rows(seed: int, count: int) -> list[Row]:
    """Games, and a share of lessons. Seeds that `gather` gives are apart by one for each part of 250 rows."""
    some = count // LESSONS
    return [*(spelling().row(seed * 250 + index) for index in range(count - some)), *make_lessons(seed, some)]


def make_lessons(seed: int, count: int) -> list[Row]:
    """Lessons alone."""
    return [spelling().lesson(seed * 250 + index) for index in range(count)]


def make_beginning(seed: int, count: int) -> list[Row]:
    """What is read first: lessons, and a third of games in the game's own words. There the skill has to be known, too."""
    some = count // 3
    games = [spelling().row(seed * 250 + index, NOBODY) for index in range(some)]
    return [*games, *make_lessons(seed, count - some)]


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


@torch.no_grad()
def right_answers(model: Any, count: int) -> dict[str, float]:
    """In lessons, the mean chance of a right answer where some direction is wrong: of each question."""
    seeds = range(HELD_OUT_LESSONS, HELD_OUT_LESSONS + count)
    rows = [spelling().lesson(seed) for seed in seeds]
    data = pack(rows, model.device)
    chances = model(input_ids=data.ids.long()).logits.float().softmax(-1)
    found: dict[str, list[float]] = {"changes": [], "merges": []}
    for number, (seed, row) in enumerate(zip(seeds, rows, strict=True)):
        of = found["changes" if draw_lesson(seed).question == CHANGES else "merges"]
        for place, right in row.soft:
            if len(right) < len(DIRECTIONS):
                of.append(float(chances[number, place - 1, list(right)].sum()))
    return {name: sum(values) / max(1, len(values)) for name, values in found.items()}


def figures_of(model: Any, tokenizer: PreTrainedTokenizerFast, seed: int, count: int) -> dict[str, float]:
    """What the model does with held-out games, in process. `wasted`: the share that ends by a move that changes nothing."""
    held_out = list(islice(make_items("eval"), count))
    begun: list[Played] = []
    start = keeping(lambda i: Played(held_out[i]), begun)
    figures = measure(model, tokenizer, start, items=count, k_items=count // 10, tokens=4)
    wasted = sum(played.game.end == "wasted" for played in begun) / max(1, len(begun))
    skills = right_answers(model, max(2, count // 2))
    return {**figures, "wasted": wasted, **skills, "expert": sum(map(play_expert, held_out)) / count}


RECIPE = Recipe(
    make_tokenizer, lambda: WORDS, make_rows, figures_of, rows=64_000, steps=4000, batch=256, seconds=115.0, layers=4,
    intermediate=384, measure=240, lessons=make_beginning, lesson_rows=32_000, lesson_steps=1000, lesson_seconds=35.0,
)  # fmt: skip

if __name__ == "__main__":
    main(__doc__, RECIPE)
