"""Lessons that the small model reads before it reads cases: what stands beside which words of a note.

A careless detective's answer is as often a guess as what a note says. From that alone a small model learns to name some
word that it has read, and never to find the person who was in one room at one time. A lesson asks for nothing else, again
and again: the words by which a note is found, and then the one that is sought. It says nothing about how a case is worked
on.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from common.hermes import END, ROLES, encode, render
from common.pretrain import Row, of_messages, own_words
from transformers import PreTrainedTokenizerFast

from clue.detectives import TOOLS, some_cases
from clue.mystery import PEOPLE, SYSTEM, VICTIM, WEAPONS, Case, Note
from clue.vocabulary import THINK, THOUGHT, UNKNOWN

__all__ = ["Lookup", "lessons", "lookups"]

QUESTIONS = 12
"""Of one lesson."""
LISTED = 20
"""Questions of a lesson that is a list."""
LATE = 0.5
"""Chance of a note that stands behind the others, as a witness's does."""

LED = 0.5
"""Chance that a room is led up to."""


class Lookup(NamedTuple):
    """What is asked for ("who", "where", "when", "with what"), the words by which it is found, and the answer."""

    asked: str
    keys: tuple[str, ...]
    answer: str

    @property
    def found(self) -> str:
        """The words by which it is found, and the answer."""
        return " ".join((*self.keys, self.answer))


def lookups(notes: Iterable[Note], missing: Iterable[Note], rng: random.Random) -> Iterator[Lookup]:
    """All that a detective looks up in these notes. What only a missing note tells is unknown.

    A room is sometimes led up to, as in a thought: by the weapon that lay there, or by the time when boddy was there.
    """
    notes, missing = list(notes), list(missing)
    weapons = {note.room: note.subject for note in notes if note.subject in WEAPONS}
    times = {note.room: str(note.time) for note in notes if note.subject == VICTIM}
    places = [(note.room, note.time) for note in notes if note.subject in PEOPLE]
    for note in (*notes, *missing):
        there = note in notes
        room, time, subject = note.room, str(note.time), note.subject
        if subject in WEAPONS:
            yield Lookup("where", (subject,), room if there else UNKNOWN)
            led = (times[room],) if room in times and rng.random() < LED else ()
            yield Lookup("with what", (*led, room), subject if there else UNKNOWN)
        elif subject == VICTIM:
            yield Lookup("where", (time,), room if there else UNKNOWN)
            led = (weapons[room],) if room in weapons and rng.random() < LED else ()
            yield Lookup("when", (*led, room), time if there else UNKNOWN)
        elif places.count((room, time)) == there:
            keys = (room, time) if rng.random() < 0.5 else (time, room)
            yield Lookup("who", keys, subject if there else UNKNOWN)


def drawn(
    case: Case, rng: random.Random, count: int, *, known: bool = False
) -> tuple[list[Note], list[Note], list[Lookup]]:
    """A case's notes, those that a witness adds to them, and different questions, of each kind about as many. `known`: only such as
    have an answer.
    """
    late = [rng.choice(case.missing)] if rng.random() < LATE else []
    kinds: dict[tuple[str, bool], list[Lookup]] = {}
    for question in lookups([*case.notes, *late], [note for note in case.missing if note not in late], rng):
        if not known or question.answer != UNKNOWN:
            kinds.setdefault((question.asked, len(question.keys) == 1 and question.keys[0] in WEAPONS), []).append(
                question
            )
    piles = list(kinds.values())
    for pile in piles:
        rng.shuffle(pile)
    asked = [rng.choice([pile for pile in piles if pile]).pop() for _ in range(count)]
    return list(case.notes), late, asked


def listing(tokenizer: PreTrainedTokenizerFast, case: Case, rng: random.Random) -> Row:
    """Notes, and one answer after another in one text. Only the word that is sought is the model's to say."""
    notes, late, asked = drawn(case, rng, LISTED)
    told = " ".join(note.text for note in (*notes, *late))
    row = of_messages(tokenizer, [{"role": "system", "content": SYSTEM}, {"role": "user", "content": told}], TOOLS)
    end = row.ids.pop()
    for question in asked:
        row.ids += encode(tokenizer, f" {question.asked} {question.found}")
        row.own += [False] * (len(row.ids) - len(row.own) - 1) + [True]
    return Row([*row.ids, end], [*row.own, False])


def asking(tokenizer: PreTrainedTokenizerFast, case: Case, rng: random.Random) -> Row:
    """Notes, and one question after another: the thought says the words of the question and the one that is sought, and the
    answer says that one again.
    """
    notes, late, asked = drawn(case, rng, QUESTIONS, known=True)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": " ".join(note.text for note in notes)},
        *({"role": "tool", "content": note.text} for note in late),
    ]
    ids = render(tokenizer, messages, TOOLS)
    for question in asked:  # without the template, which would drop the thoughts
        user = f"{ROLES['user']}{question.asked} {' '.join(question.keys)}?{END}"
        reply = f"{THINK} {question.found}{THOUGHT}{question.answer}{END}"
        ids += encode(tokenizer, user + ROLES["assistant"] + reply)
    assistant, end = encode(tokenizer, ROLES["assistant"] + END)
    return Row(ids, own_words(ids, assistant, end))


def lessons(tokenizer: PreTrainedTokenizerFast, seed: int, count: int) -> list[Row]:
    """`count` lessons as rows: half of them lists, half of them questions."""
    rng = random.Random(seed)
    makers = (listing, asking)
    return [makers[i % 2](tokenizer, case, rng) for i, case in enumerate(some_cases(rng, count))]
