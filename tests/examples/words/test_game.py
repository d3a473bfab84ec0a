"""The guessing games, in Python and in JavaScript, against an independent statement of their rules."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from words import game
from words.game import KINDS, Game, Item, answer, guessable, make_items, pairs

FOLDER = Path(game.__file__).parent
node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def test_a_letter_is_right_elsewhere_or_absent() -> None:
    for secret, guess in itertools.permutations(game.WORDS, 2):
        marks = answer("word", secret, guess).split()
        assert [mark[0] for mark in marks] == list(guess)
        for place, mark in enumerate(marks):
            where = secret.find(mark[0])
            said = {-1: "-", place: f"={place + 1}"}.get(where, f"~{place + 1}")
            assert mark[1:] == said


def test_words_have_four_letters_of_which_no_two_are_alike() -> None:
    assert len(set(game.WORDS)) == len(game.WORDS) == 64
    assert all(len(word) == len(set(word)) == 4 and word.isalpha() for word in game.WORDS)


def test_numbers_are_higher_or_lower() -> None:
    assert [answer("number", "7", guess) for guess in ("6", "7", "8")] == ["higher", "right", "lower"]


@pytest.mark.parametrize(
    ("kind", "guess"), [("word", "xyzw"), ("word", ""), ("number", "31"), ("number", "7.5"), ("number", "x")]
)
def test_what_cannot_be_guessed_costs_a_guess(kind: str, guess: str) -> None:
    playing = Game(pairs(kind, "train")[0])
    left = playing.left
    assert playing.guess(guess) == "no such guess"
    assert (playing.left, playing.reward) == (left - 1, 0.0)


def test_a_game_ends_when_it_is_found_or_no_guess_is_left() -> None:
    item = Item("word", "lake", "rice")
    playing = Game(item)
    assert playing.guess("lake") == "right"
    assert (playing.left, playing.reward) == (0, 1.0)
    assert playing.guess("rose") == "no guesses left, it was lake"
    assert playing.reward == 1.0
    playing = Game(item)
    assert [playing.guess("rose") for _ in range(4)] == ["r- o- s- e=4"] * 3 + ["no guesses left, it was lake"]
    assert (playing.left, playing.reward) == (0, 0.0)


def test_a_quarter_is_held_out_and_everything_is_sought_in_training() -> None:
    for kind in KINDS:
        train, held_out = pairs(kind, "train"), pairs(kind, "eval")
        count = len(guessable(kind))
        assert len(train) + len(held_out) == count * (count - 1)
        assert 0.2 < len(held_out) / (count * (count - 1)) < 0.3
        assert {item.secret for item in train} == {item.first for item in train} == set(guessable(kind))
        assert len({item.secret for item in held_out}) >= count - 1, "and nearly everything in the held-out games"


def test_items_come_by_turns_and_without_end() -> None:
    items = list(itertools.islice(make_items("eval", 4), 3000))
    assert [item.kind for item in items[:4]] == ["word", "number"] * 2
    assert {item.split for item in items} == {"eval"}
    assert (
        items[:20]
        == list(itertools.islice(make_items("eval", 4), 20))
        != list(itertools.islice(make_items("eval", 5), 20))
    )


@node
def test_the_agents_rules_are_the_same() -> None:
    script = """
import { answer, Game, guessable, kinds, splitOf } from './game.mjs';
const found = [];
for (const kind of kinds)
  for (const secret of guessable(kind))
    for (const first of guessable(kind)) {
      if (secret === first) continue;
      const item = { kind, secret, first };
      const game = new Game(item);
      const told = [];
      for (const guess of ['nonsense', first, first, first, first, secret]) told.push([game.guess(guess), game.left, game.reward]);
      const won = new Game(item);
      told.push([won.guess(secret), won.left, won.reward]);
      found.push([game.id, splitOf(item), game.question, told]);
    }
console.log(JSON.stringify(found));
"""
    ran = subprocess.run(
        ["node", "--input-type=module", "-e", script], cwd=FOLDER, capture_output=True, text=True, check=True
    )
    theirs = json.loads(ran.stdout)
    ours = []
    for kind in KINDS:
        for secret, first in itertools.permutations(guessable(kind), 2):
            item = Item(kind, secret, first)
            playing, told = Game(item), []
            for guess in ("nonsense", first, first, first, first, secret):
                told.append([playing.guess(guess), playing.left, playing.reward])
            won = Game(item)
            told.append([won.guess(secret), won.left, won.reward])
            ours.append([item.id, item.split, item.question, told])
    assert sorted(theirs, key=str) == sorted(ours, key=str)


@node
def test_an_item_that_the_agent_draws_is_of_the_split() -> None:
    script = "import { drawItem } from './game.mjs'; console.log(JSON.stringify(Array.from({length: 50}, () => drawItem('eval'))))"
    ran = subprocess.run(
        ["node", "--input-type=module", "-e", script], cwd=FOLDER, capture_output=True, text=True, check=True
    )
    drawn = [Item(**found) for found in json.loads(ran.stdout)]
    assert {item.split for item in drawn} == {"eval"}
    assert {item.kind for item in drawn} == set(KINDS)
