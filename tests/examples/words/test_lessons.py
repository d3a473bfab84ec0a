"""Lessons: what is right is what fits all answers so far, and nothing else is asked for."""

from __future__ import annotations

import random
import re

import torch
from common.making import HELD_OUT_LESSONS, LESSONS
from words.game import GUESSES, NUMBERS, WORDS, answer
from words.lessons import lesson, lessons
from words.make_model import fits, make_lessons, make_rows, spelling
from words.vocabulary import ASK

TOKENIZER = spelling().tokenizer
TOLD = {
    "word": re.compile(r"([a-z]{4}) ((?:[a-z](?:[=~]\d|-) ?){4})"),
    "number": re.compile(r"(\d+) (higher|lower)"),
}


def told_in(kind: str, text: str) -> list[tuple[str, str]]:
    return [(guess, said.strip()) for guess, said in TOLD[kind].findall(text)]


def test_the_same_seed_gives_the_same_lessons_and_three_of_four_are_about_words() -> None:
    assert make_lessons(3, 8) == make_lessons(3, 8) != make_lessons(4, 8)
    texts = [TOKENIZER.decode(row.ids) for row in lessons(TOKENIZER, 0, 40)]
    assert sum('"word"' in text for text in texts) == 30
    assert sum('"number"' in text for text in texts) == 10


def test_whatever_fits_all_answers_so_far_is_right_and_equally_so() -> None:
    rng = random.Random(0)
    for kind, among in (("word", WORDS), ("number", NUMBERS)):
        for _ in range(40):
            row = lesson(TOKENIZER, kind, rng)
            assert len(row.soft) == GUESSES[kind]
            assert ASK in TOKENIZER.decode(row.ids)
            heard = []
            for place, chances in row.soft:
                told = told_in(kind, TOKENIZER.decode(row.ids[:place]))
                assert told[: len(heard)] == heard
                heard = told
                # stated once more: a secret fits if it would have been answered so
                right = {one for one in among if all(answer(kind, one, guess) == said for guess, said in told)}
                assert {str(TOKENIZER.decode([token])) for token in chances} == right
                assert len(set(chances.values())) == 1
                assert abs(sum(chances.values()) - 1) < 1e-6
                assert row.ids[place] in chances, "what is said fits"
            assert 1 <= len(told_in(kind, TOKENIZER.decode(row.ids[: row.soft[0][0]]))) <= 3


def test_only_what_fits_is_the_models_to_say() -> None:
    for row in lessons(TOKENIZER, 1, 12):
        said = [TOKENIZER.decode([i]) for i, own in zip(row.ids, row.own, strict=True) if own]
        assert len(row.own) == len(row.ids)
        assert len(said) == 4 * len(row.soft)


def test_a_quarter_of_what_is_read_beside_lessons_is_lessons() -> None:
    assert make_rows(2, 4 * LESSONS)[-4:] == make_lessons(2, 4)


def test_what_fits_is_measured_on_lessons_that_were_not_read() -> None:
    class Knows:
        """Gives the first that fits a chance of one half, and one that does not fit the other half."""

        device = torch.device("cpu")

        def __init__(self) -> None:
            self.rows = {tuple(row.ids): row for row in lessons(TOKENIZER, HELD_OUT_LESSONS, 6)}

        def __call__(self, ids: torch.Tensor) -> object:
            row = self.rows[tuple(ids[0].tolist())]
            logits = torch.full((1, len(row.ids), len(TOKENIZER)), -50.0)
            for place, chances in row.soft:
                logits[0, place - 1, next(iter(chances))] = 0
                logits[0, place - 1, next(token for token in range(300, 700) if token not in chances)] = 0
            return type("Said", (), {"logits": logits})

    assert abs(fits(Knows(), TOKENIZER, 6) - 0.5) < 1e-6
