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

from common.hermes import encode, render, tool_turn
from common.making import Recipe, main
from common.pretrain import Row
from common.sampling import measure
from transformers import PreTrainedTokenizerFast

from tictactoe.players import draw_player
from tictactoe.tictactoe import Game, Task, best_value, make_tasks, openings
from tictactoe.vocabulary import PLAY, build_tokenizer, move_message, words

TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "play"}}]


class Spelling:
    """Token ids of a game's texts, as the chat template writes them."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.squares = [tokenizer.convert_tokens_to_ids(str(i + 1)) for i in range(9)]
        self.known: dict[str, list[int]] = {}

    def prompt(self, task: Task) -> list[int]:
        """Everything up to the first move."""
        if task.question not in self.known:
            asked = [{"role": "user", "content": task.question}]
            self.known[task.question] = render(self.tokenizer, asked, TOOLS, ask=True)
        return self.known[task.question]

    def answer(self, text: str) -> list[int]:
        """What stands between one move's end token and the next move."""
        return self.encode(tool_turn(text))

    def move(self, square: int) -> list[int]:
        """A move (square 1 to 9) with its end token."""
        messages = [{"role": "user", "content": ""}, move_message(square)]
        text = str(self.tokenizer.apply_chat_template(messages, tokenize=False))
        return self.encode(text[text.index(PLAY) :])

    def encode(self, text: str) -> list[int]:
        """Ids of a text, remembered."""
        if text not in self.known:
            self.known[text] = encode(self.tokenizer, text)
        return self.known[text]


@functools.cache
def own_spelling() -> Spelling:
    """One of each process that makes games."""
    return Spelling(build_tokenizer())


def make_games(seed: int, count: int) -> list[Row]:
    """Games of the players from every opening, held-out ones too: reading about a board is not training on its reward."""
    rng = random.Random(seed)
    spelling, boards = own_spelling(), openings()
    return [read_game(spelling, boards[rng.randrange(len(boards))], rng) for _ in range(count)]


def read_game(spelling: Spelling, board: str, rng: random.Random) -> Row:
    """One game of a player from this board, against the random opponent."""
    player, game = draw_player(rng), Game(board, rng)
    ids = list(spelling.prompt(Task("", board, "")))
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
    return {**figures, "expert": sum(best_value(t.board) for t in tasks) / len(tasks)}


RECIPE = Recipe(
    build_tokenizer,
    words,
    make_games,
    lambda model, tokenizer, seed, count: figures_of(model, tokenizer, games=count, k=64, seed=seed),
    rows=120_000,
    steps=1200,
    layers=2,
    intermediate=1024,
    measure=2000,
)

if __name__ == "__main__":
    main(__doc__, RECIPE)
