"""Players of the guessing games: the clumsy ones whose games the small model has read, and the scripted expert.

A player has one habit for a whole game. Most heed nothing that they are told. The better ones are the fewest.
"""

from __future__ import annotations

import random
from collections import Counter

from words.game import HIGHEST, NUMBERS, RIGHT, WORDS, Game, Item, answer

__all__ = ["HABITS", "choices", "draw_habit", "expert_guess", "fitting", "play_expert"]

HABITS = {
    "word": {"any": 0.66, "green": 0.16, "last": 0.10, "all": 0.08},
    "number": {"any": 0.60, "last": 0.20, "all": 0.14, "middle": 0.06},
}
"""For each kind of game, the share of the players that heed nothing, the letters in their right places, the last answer, all
answers, or also take the middle."""


def fitting(kind: str, told: list[tuple[str, str]]) -> list[str]:
    """What can still be the secret after all that was told."""
    heard = [(guess, said) for guess, said in told if said != RIGHT]
    if kind == "word":
        return [word for word in WORDS if all(answer(kind, word, guess) == said for guess, said in heard)]
    low = max([int(guess) for guess, said in heard if said == "higher"], default=0)
    high = min([int(guess) for guess, said in heard if said == "lower"], default=HIGHEST + 1)
    return [str(number) for number in range(low + 1, high)]


def choices(habit: str, kind: str, told: list[tuple[str, str]]) -> list[str]:
    """The guesses that a player of this habit finds equally good now."""
    if habit == "any":
        return list(WORDS if kind == "word" else NUMBERS)
    if habit == "last":
        return fitting(kind, told[-1:])
    if habit == "green":
        placed = {mark[2]: mark[0] for _, said in told for mark in said.split() if mark[1:2] == "="}
        return [word for word in WORDS if all(word[int(place) - 1] == letter for place, letter in placed.items())]
    found = fitting(kind, told)
    return found if habit == "all" else [found[(len(found) - 1) // 2]]


def draw_habit(kind: str, rng: random.Random) -> str:
    """A player's habit, by the shares."""
    return rng.choices(list(HABITS[kind]), list(HABITS[kind].values()))[0]


def expert_guess(kind: str, told: list[tuple[str, str]]) -> str:
    """Of what can still be the secret, the guess after which the fewest can, on average."""
    found = fitting(kind, told)
    if kind == "number":
        return found[(len(found) - 1) // 2]

    def remaining(guess: str) -> int:
        return sum(n * n for n in Counter(answer(kind, secret, guess) for secret in found).values())

    return min(found, key=remaining)


def play_expert(item: Item) -> float:
    """The expert's reward in one game."""
    game = Game(item)
    while game.left:
        game.guess(expert_guess(item.kind, game.told))
    return game.reward
