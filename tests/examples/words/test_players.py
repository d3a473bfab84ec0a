"""The players of the guessing games: none is crippled, the expert is the best."""

from __future__ import annotations

import itertools
import random

import pytest
from words.game import HIGHEST, KINDS, Game, answer, guessable, make_items, pairs
from words.players import HABITS, choices, draw_habit, expert_guess, fitting, play_expert


def mean_reward(kind: str, habit: str, games: int) -> float:
    rng, total = random.Random(0), 0.0
    for item in random.Random(1).sample(pairs(kind, "eval"), games):
        game = Game(item)
        while game.left:
            game.guess(rng.choice(choices(habit, kind, game.told)))
        total += game.reward
    return total / games


@pytest.mark.parametrize("kind", KINDS)
def test_who_heeds_more_finds_more(kind: str) -> None:
    means = [mean_reward(kind, habit, 120) for habit in HABITS[kind]]
    assert means == sorted(means)
    assert 0.03 < means[0] < 0.3
    shares = list(HABITS[kind].values())
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)
    start = sum(share * mean for share, mean in zip(shares, means, strict=True))
    assert 0.2 < start < 0.4, "where the small model begins, of an expert's 1.0"


def test_the_expert_finds_everything() -> None:
    assert sum(map(play_expert, itertools.islice(make_items("eval", 0), 100))) > 97


def test_what_fits_is_what_every_answer_allows() -> None:
    rng = random.Random(0)
    for kind in KINDS:
        for item in rng.sample(pairs(kind, "train"), 30):
            game = Game(item)
            game.guess(rng.choice(guessable(kind)))
            expected = [
                secret
                for secret in guessable(kind)
                if all(answer(kind, secret, guess) == said for guess, said in game.told)
            ]
            if game.reward == 0:
                assert fitting(kind, game.told) == expected
                assert item.secret in expected
                assert expert_guess(kind, game.told) in expected
                assert set(choices("all", kind, game.told)) == set(expected)
                assert set(expected) <= set(choices("last", kind, game.told))
                assert set(expected) <= set(choices("any", kind, game.told))


def test_letters_in_their_places_are_kept() -> None:
    told = [("rice", answer("word", "lake", "rice"))]
    found = choices("green", "word", told)
    assert all(word.endswith("e") for word in found)
    assert "rose" in found, "but an r is heeded by others only"


def test_the_middle_is_the_middle() -> None:
    assert choices("middle", "number", [("20", "lower"), ("10", "higher")]) == ["15"]
    assert len(choices("any", "number", [])) == HIGHEST


def test_habits_are_drawn_by_their_shares() -> None:
    rng = random.Random(0)
    drawn = [draw_habit("word", rng) for _ in range(2000)]
    assert abs(drawn.count("any") / 2000 - HABITS["word"]["any"]) < 0.05
