"""Find the word, find the number: two guessing games, the world of the words agent.

Each game begins with a guess that somebody else made, and what it was told. Then the player has a few guesses. After each
of them it is told, for a word, of each letter whether it is right, elsewhere or absent, and for a number, whether the
secret is higher or lower. An item is a pair of secret and first guess. A quarter of all pairs are held out.

The agent has the same rules in `game.mjs`. What both need (the words, the texts) stands in `game.json`.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "GUESSES",
    "HIGHEST",
    "KINDS",
    "OVER",
    "RIGHT",
    "RULES",
    "UNKNOWN",
    "WORDS",
    "Game",
    "Item",
    "answer",
    "make_items",
]

DATA = json.loads((Path(__file__).parent / "game.json").read_text())
WORDS: tuple[str, ...] = tuple(DATA["words"])
HIGHEST: int = DATA["highest"]
GUESSES: dict[str, int] = DATA["guesses"]
"""Guesses that the player has after the first one."""
RULES: dict[str, str] = DATA["rules"]
RIGHT: str = DATA["right"]
UNKNOWN: str = DATA["unknown"]
OVER: str = DATA["over"]
KINDS = ("word", "number")
NUMBERS = tuple(str(n) for n in range(1, HIGHEST + 1))


def guessable(kind: str) -> tuple[str, ...]:
    """Everything that may be guessed in this kind of game."""
    return WORDS if kind == "word" else NUMBERS


@functools.cache
def answer(kind: str, secret: str, guess: str) -> str:
    """What the player is told of a guess: "s~1 a- l- t=4" for a word, "higher" or "lower" for a number, or "right"."""
    if guess == secret:
        return RIGHT
    if guess not in guessable(kind):
        return UNKNOWN
    if kind == "number":
        return "higher" if int(secret) > int(guess) else "lower"
    return " ".join(
        f"{letter}={place}"
        if secret[place - 1] == letter
        else f"{letter}~{place}"
        if letter in secret
        else f"{letter}-"
        for place, letter in enumerate(guess, 1)
    )


class Item(NamedTuple):
    """One game to play: what is sought, and the guess that it begins with."""

    kind: str
    secret: str
    first: str

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.secret}-{self.first}"

    @property
    def split(self) -> str:
        """ "train" or "eval". Whatever is sought in "eval" is sought in "train" too, after other first guesses."""
        among = guessable(self.kind)
        secret, first = among.index(self.secret), among.index(self.first)
        return "train" if (37 * secret + 61 * first + 11 * secret * first) % 97 % 4 else "eval"

    @property
    def question(self) -> str:
        """What the player is asked."""
        return f"{RULES[self.kind]} {self.first} {answer(self.kind, self.secret, self.first)}"


@functools.cache
def pairs(kind: str, split: str) -> tuple[Item, ...]:
    """All games of a kind and split."""
    found = (Item(kind, secret, first) for secret, first in itertools.permutations(guessable(kind), 2))
    return tuple(item for item in found if item.split == split)


def make_items(split: str, seed: int = 0) -> Iterator[Item]:
    """Items of a split in an order of the seed's own, a word and a number by turns, without end."""
    rng = random.Random(seed)
    shuffled = [rng.sample(pairs(kind, split), len(pairs(kind, split))) for kind in KINDS]
    for both in zip(*map(itertools.cycle, shuffled), strict=True):
        yield from both


@dataclass
class Game:
    """One game. `told` holds the guesses so far and what was said of each, the first one too."""

    item: Item
    told: list[tuple[str, str]] = field(default_factory=list)
    left: int = 0
    reward: float = 0.0

    def __post_init__(self) -> None:
        self.left = GUESSES[self.item.kind]
        self.told.append((self.item.first, answer(self.item.kind, self.item.secret, self.item.first)))

    def guess(self, guess: str) -> str:
        """Make a guess. Returns what the player is told; after the last guess, what it was."""
        if not self.left:
            return f"{OVER} {self.item.secret}"
        said = answer(self.item.kind, self.item.secret, guess)
        self.told.append((guess, said))
        self.left = 0 if said == RIGHT else self.left - 1
        self.reward = float(said == RIGHT)
        return said if self.left or said == RIGHT else f"{OVER} {self.item.secret}"
