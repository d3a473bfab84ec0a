"""Lessons that the small model reads before it reads games: what can still be the secret after all that was told.

Most players heed one answer at most. From their games alone a small model learns to use one answer, and to use two together
only now and then. A lesson asks for nothing else, again and again. It says nothing about which guess is a good one: what
was told is about any guesses, and each word or number that can still be the secret is as right as any other.
"""

from __future__ import annotations

import random
from typing import Any

from common.hermes import encode, render, tool_turn
from common.pretrain import Row
from transformers import PreTrainedTokenizerFast

from words.game import GUESSES, answer, guessable
from words.players import fitting
from words.vocabulary import ASK, close_of, opening_of, tools_of

__all__ = ["lessons"]

NUMBERS = 4
"""One lesson in so many is about a number."""


def hear(kind: str, secret: str, told: list[tuple[str, str]], rng: random.Random) -> str:
    """Have the guess of any other word or number answered. → What is read of it."""
    guess = rng.choice([other for other in guessable(kind) if other != secret])
    said = answer(kind, secret, guess)
    told.append((guess, said))
    return f"{guess} {said}"


def lesson(tokenizer: PreTrainedTokenizerFast, kind: str, rng: random.Random) -> Row:
    """Answers to some guesses at a secret, and what fits them all; then one more, and what fits now, and so on."""
    told: list[tuple[str, str]] = []
    secret = rng.choice(guessable(kind))
    first = " ".join(hear(kind, secret, told, rng) for _ in range(rng.randint(1, 3)))
    asked: list[dict[str, Any]] = [{"role": "user", "content": f"{ASK} {first}"}]
    ids = render(tokenizer, asked, tools_of(kind), ask=True)
    row = Row(ids, [False] * len(ids))
    for turn in range(GUESSES[kind]):
        if turn:
            row.ids += encode(tokenizer, tool_turn(hear(kind, secret, told, rng)))
            row.own += [False] * (len(row.ids) - len(row.own))
        fits = fitting(kind, told)
        row.soft.append((len(row.ids) + 1, {encode(tokenizer, one)[0]: 1 / len(fits) for one in fits}))
        row.ids += encode(tokenizer, opening_of(kind) + rng.choice(fits) + close_of(kind))
        row.own += [True] * (len(row.ids) - len(row.own))
    return row


def lessons(tokenizer: PreTrainedTokenizerFast, seed: int, count: int) -> list[Row]:
    """`count` lessons as rows."""
    rng = random.Random(seed)
    return [lesson(tokenizer, "word" if i % NUMBERS else "number", rng) for i in range(count)]
