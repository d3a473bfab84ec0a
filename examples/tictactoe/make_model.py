"""Make the small model: a Qwen3-shaped one that has read the games of mostly clumsy players.

    python examples/tictactoe/make_model.py OUT --steps 1200 --seed 0

Games, weights and their order come from the seed. Where a player finds several squares equally good, the model learns all
of them at once. The last line of output is JSON: what the model scores on held-out openings. `--device cuda` uses a GPU.
"""

from __future__ import annotations

import functools
import json
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.making import HELD_OUT_LESSONS, LESSONS, Recipe, chance_of_right, main
from common.pretrain import Row
from common.sampling import measure
from transformers import PreTrainedTokenizerFast

from tictactoe.lessons import lessons
from tictactoe.players import draw_player
from tictactoe.tictactoe import Game, Task, best_value, make_tasks, openings
from tictactoe.vocabulary import TOOLS, Spelling, build_tokenizer, words


@functools.cache
def own_spelling() -> Spelling:
    """One of each process that makes games."""
    return Spelling(build_tokenizer())


def make_rows(seed: int, count: int) -> list[Row]:
    """`count` games and lessons."""
    some = count // LESSONS
    return [*make_games(seed, count - some), *make_lessons(seed, some)]


def make_games(seed: int, count: int) -> list[Row]:
    """Games of the players from every opening, held-out ones too: reading about a board is not training on its reward."""
    rng = random.Random(seed)
    spelling, boards = own_spelling(), openings()
    return [read_game(spelling, boards[rng.randrange(len(boards))], rng) for _ in range(count)]


def make_lessons(seed: int, count: int) -> list[Row]:
    """Lessons as rows."""
    return lessons(own_spelling(), seed, count)


def read_game(spelling: Spelling, board: str, rng: random.Random) -> Row:
    """One game of a player from this board, against the random opponent."""
    player, game = draw_player(rng), Game(board, rng)
    ids = list(spelling.prompt(Task("", board, "").question))
    row = Row(ids, [False] * len(ids))
    while game.reward is None:
        choices = player.choices(game.board, rng)
        row.soft.append((len(row.ids) + 1, {spelling.squares[s]: 1 / len(choices) for s in choices}))
        square = rng.choice(choices) + 1
        row.ids += spelling.move(square)
        row.own += [True] * (len(row.ids) - len(row.own))
        seen = game.play(square)
        if game.reward is None:
            row.ids += spelling.answer(seen)
            row.own += [False] * (len(row.ids) - len(row.own))
    return row


class GamePlayed:
    """A game as it is played in process. A reply that is no move loses."""

    def __init__(self, task: Task, rng: random.Random) -> None:
        self.game = Game(task.board, rng)
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": task.question}]
        self.tools = TOOLS
        self.done, self.reward = False, -1.0

    def act(self, message: dict[str, Any]) -> None:
        """Play the message's move, and append what the tool says."""
        self.messages.append(message)
        try:
            square = int(json.loads(message["tool_calls"][0]["function"]["arguments"])["square"])
        except (KeyError, TypeError, ValueError):
            self.done = True
            return
        self.messages.append({"role": "tool", "content": self.game.play(square)})
        if self.game.reward is not None:
            self.done, self.reward = True, self.game.reward


def figures_of(model: Any, tokenizer: PreTrainedTokenizerFast, *, games: int, k: int, seed: int) -> dict[str, float]:
    """Mean reward on held-out openings, the best play's, and pass@k: the share of openings that one of k games wins."""
    rng = random.Random(seed)
    tasks = make_tasks("eval", max(games, 20), seed)
    figures = measure(
        model, tokenizer, lambda i, run: GamePlayed(tasks[i], rng), items=games, k=k, k_items=20, tokens=8
    )
    expert = sum(best_value(t.board) for t in tasks) / len(tasks)
    return {**figures, "rows": rows_seen(model, min(k * 10, 200)), "expert": expert}


def rows_seen(model: Any, count: int) -> float:
    """Mean chance of the squares that complete a row, in `count` lessons that were not read."""
    return chance_of_right(model, lessons(own_spelling(), HELD_OUT_LESSONS, count))


RECIPE = Recipe(
    build_tokenizer,
    words,
    make_rows,
    lambda model, tokenizer, seed, count: figures_of(model, tokenizer, games=count, k=64, seed=seed),
    rows=80_000,
    steps=1000,
    batch=64,
    layers=2,
    intermediate=1024,
    measure=2000,
    lessons=make_lessons,
    lesson_rows=30_000,
    lesson_steps=500,
)

if __name__ == "__main__":
    main(__doc__, RECIPE)
