"""Make the small model of the guessing games: it has read the games of players most of whom heed nothing.

    python examples/words/make_model.py OUT --device cuda

Games, weights and their order come from the seed. Where a player finds several guesses equally good, the model learns all of
them at once. The last line of output is JSON: what the model scores on held-out games.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.hermes import END, encode, render, tool_turn
from common.making import HELD_OUT_LESSONS, LESSONS, Recipe, chance_of_right, main
from common.pretrain import Row
from common.sampling import measure
from transformers import PreTrainedTokenizerFast

from words.game import KINDS, Game, Item, make_items, pairs
from words.lessons import lessons
from words.players import choices, draw_habit, play_expert
from words.vocabulary import DONE, VOCABULARY, close_of, make_tokenizer, opening_of, tools_of


class Spelling:
    """Token ids of a game's texts, as the chat template writes them."""

    def __init__(self) -> None:
        self.tokenizer = make_tokenizer()
        self.encode = functools.cache(lambda text: tuple(encode(self.tokenizer, text)))
        # One object for each set of guesses: it travels between processes once for many rows.
        self.chances = functools.cache(lambda found: {self.encode(guess)[0]: 1 / len(found) for guess in found})

    def row(self, item: Item, rng: random.Random) -> Row:
        """A whole game of one of the players, up to where it says that it is done."""
        game, habit = Game(item), draw_habit(item.kind, rng)
        question = [{"role": "user", "content": item.question}]
        row = Row(render(self.tokenizer, question, tools_of(item.kind), ask=True), [])
        row.own += [False] * len(row.ids)
        close = self.encode(close_of(item.kind))
        while game.left:
            found = choices(habit, item.kind, game.told)
            row.soft.append((len(row.ids) + 1, self.chances(tuple(found))))
            guess = rng.choice(found)
            said = (*self.encode(opening_of(item.kind)), *self.encode(guess), *close)
            told = self.encode(tool_turn(game.guess(guess)))
            row.ids += (*said, *told)
            row.own += [True] * len(said) + [False] * len(told)
        row.ids += self.encode(DONE + END)
        row.own += [True, True]
        return row


spelling = functools.cache(Spelling)


def make_rows(seed: int, count: int) -> list[Row]:
    """`count` games and lessons. Games from held-out items too: reading about a game is not training on its reward."""
    rng = random.Random(seed)
    items = {kind: (*pairs(kind, "train"), *pairs(kind, "eval")) for kind in KINDS}
    some = count // LESSONS
    games = [spelling().row(rng.choice(items[KINDS[index % 3 // 2]]), rng) for index in range(count - some)]
    return [*games, *make_lessons(seed, some)]


def make_lessons(seed: int, count: int) -> list[Row]:
    """Lessons as rows."""
    return lessons(spelling().tokenizer, seed, count)


@functools.cache
def held_out(count: int) -> list[Item]:
    """The first held-out games."""
    return list(itertools.islice(make_items("eval"), count))


class Played:
    """One game as `common.sampling` plays it: call by call, as the agent does."""

    def __init__(self, item: Item) -> None:
        self.game = Game(item)
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": item.question}]
        self.tools = tools_of(self.game.item.kind)
        self.done = False
        self.reward = 0.0

    def act(self, message: dict[str, Any]) -> None:
        """Make the guesses that the message asks for."""
        self.messages.append(message)
        for call in message.get("tool_calls") or []:
            try:
                guess = str(json.loads(call["function"]["arguments"])[self.game.item.kind])
            except (TypeError, KeyError):
                guess = ""
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": self.game.guess(guess)})
        self.done = not message.get("tool_calls") or len(self.messages) > 20
        self.reward = self.game.reward


def fits(model: Any, tokenizer: PreTrainedTokenizerFast, count: int) -> float:
    """Mean chance of what fits all that was told, in lessons that were not read."""
    return chance_of_right(model, lessons(tokenizer, HELD_OUT_LESSONS, count))


def figures_of(model: Any, tokenizer: PreTrainedTokenizerFast, seed: int, count: int) -> dict[str, float]:
    """What the model does with held-out games, in process."""
    items = held_out(count)
    figures = measure(model, tokenizer, lambda i, _: Played(items[i]), items=count, k_items=count // 10, tokens=8)
    figures["fits"] = fits(model, tokenizer, count // 5)
    return {**figures, "expert": sum(map(play_expert, items)) / count}


RECIPE = Recipe(
    make_tokenizer,
    lambda: VOCABULARY,
    make_rows,
    figures_of,
    rows=60_000,
    steps=3000,
    seconds=90.0,
    layers=4,
    intermediate=384,
    positions=512,
    lessons=make_lessons,
    lesson_rows=40_000,
    lesson_steps=1000,
    lesson_seconds=30.0,
)

if __name__ == "__main__":
    main(__doc__, RECIPE)
