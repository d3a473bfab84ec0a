"""Temporal Clue: the world of the detective.

Mister Boddy went from room to room. Whoever was in the room of the crime at the time of the crime did it, with the weapon
that lay there. The police's notes say who was where at what time, and what lay where. Each case tells one thing about the
crime (its room, its time or its weapon) and asks for the rest. One note that is needed is missing: a witness who is asked
about the right word tells it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from common.worlds import first_seed

__all__ = [
    "KINDS", "NOBODY", "PEOPLE", "ROOMS", "SYSTEM", "TIMES", "VICTIM", "WEAPONS",
    "Case", "Crime", "Note", "cases", "deduce", "make_case", "read_notes", "score", "subject_of_use", "words_of",
]  # fmt: skip

PEOPLE = tuple("scarlet mustard green plum white peacock".split())  # noqa: SIM905
ROOMS = tuple("hall study kitchen library lounge cellar".split())  # noqa: SIM905
TIMES = tuple("seven eight nine ten eleven twelve".split())  # noqa: SIM905
WEAPONS = tuple("rope knife candle wrench pistol pipe".split())  # noqa: SIM905
KINDS = {"who": PEOPLE, "where": ROOMS, "when": TIMES, "with what": WEAPONS}
VICTIM = "boddy"
SYSTEM = "find out who did it"
NOBODY = "nobody knows"
GIVEN = {"where": "died in the", "when": "died at", "with what": "died by the"}
USED = 5
"""Rooms, times, weapons and people of one case."""

NOTE = re.compile(rf"\b({'|'.join(ROOMS)})(?: ({'|'.join(TIMES)}))? ({'|'.join((*PEOPLE, *WEAPONS, VICTIM))})\.")


class Note(NamedTuple):
    """Where somebody was at a time, or where a weapon lay (without a time)."""

    subject: str
    room: str
    time: str | None = None

    @property
    def text(self) -> str:
        """As the police wrote it."""
        return " ".join(word for word in (self.room, self.time, self.subject) if word) + "."


class Crime(NamedTuple):
    """What is known of a crime, question by question; "" where nothing is."""

    who: str = ""
    where: str = ""
    when: str = ""
    what: str = ""

    def answer(self, question: str) -> str:
        """The answer to "who", "where", "when" or "with what"."""
        return str(getattr(self, question.removeprefix("with ")))


@dataclass(frozen=True)
class Case:
    """One case. `given`: the question whose answer is told; `notes` are told too, of the `missing` ones a witness tells one."""

    id: str
    crime: Crime
    given: str
    notes: tuple[Note, ...]
    missing: tuple[Note, ...]

    @cached_property
    def questions(self) -> tuple[str, str, str]:
        """Who did it, and the two others of where, when and with what that are not given."""
        first, second = (q for q in GIVEN if q != self.given)
        return "who", first, second

    @property
    def opening(self) -> str:
        """The first message: the case, its notes, and the first question."""
        told = f"{VICTIM} {GIVEN[self.given]} {self.crime.answer(self.given)}."
        return " ".join([told, *(note.text for note in self.notes), "who?"])

    @property
    def closing(self) -> str:
        """The second message: the other two questions."""
        return f"{self.questions[1]} and {self.questions[2]}?"

    def testimony(self, about: str) -> str:
        """What a witness tells who is asked about a word: the first missing note that holds it."""
        word = about.strip().lower()
        return next((note.text for note in self.missing if word in note), NOBODY)


def words_of(case: Case) -> dict[str, list[str]]:
    """What the case's notes name, by the question that it could answer."""
    named = {word for note in (*case.notes, *case.missing) for word in note if word}
    return {question: [word for word in words if word in named] for question, words in KINDS.items()}


def make_case(seed: int) -> Case:
    """The case of a seed, always the same one."""
    rng = random.Random(seed)
    people, rooms, times, weapons = (rng.sample(words, USED) for words in KINDS.values())
    crime = Crime(people[0], rooms[0], times[0], weapons[0])
    lay = [Note(weapon, room) for weapon, room in zip(weapons, rooms, strict=True)]
    walk = [Note(VICTIM, room, time) for room, time in zip(rooms, times, strict=True)]
    others = people[1:]
    rng.shuffle(others)
    seen = [Note(crime.who, crime.where, crime.when)]
    seen += [Note(others[i], crime.where, times[1 + i]) for i in range(2)]
    seen += [Note(others[2 + i], rooms[1 + i], crime.when) for i in range(2)]
    elsewhere = [(room, time) for room in rooms[1:] for time in times[1:]]
    seen += [Note(rng.choice(people), room, time) for room, time in rng.sample(elsewhere, 3)]
    needed = rng.choice([lay[0], walk[0], seen[0]])
    # What else is missing says nothing about the room, the time, the weapon or the murderer.
    useless = [lay[rng.randrange(1, USED)], walk[rng.randrange(1, USED)]]
    useless += [next(n for n in (*seen[5:], *walk[1:]) if crime.who not in n and n not in useless)]
    missing = [needed, *useless]
    notes = [note for note in (*lay, *walk, *seen) if note not in missing]
    rng.shuffle(notes)
    return Case(f"clue-{seed}", crime, rng.choice(list(GIVEN)), tuple(notes), tuple(missing))


def cases(split: str, seed: int = 0) -> Iterator[Case]:
    """Cases of a split without end: "train", "eval" (held out) or "pretrain" (what the small model was made from)."""
    first = first_seed(split, seed, 1_000_000)
    for index in range(1_000_000):
        yield make_case(first + index)


def deduce(given: str, word: str, notes: Iterable[Note]) -> Crime:
    """What follows from the notes, where one answer (`given` is `word`) is told."""
    notes = list(notes)
    room = word if given == "where" else ""
    time = word if given == "when" else ""
    what = word if given == "with what" else ""
    for note in notes:
        if note.subject == what or (note.subject == VICTIM and note.time == time):
            room = room or note.room
    for note in notes:
        if note.room == room and note.subject == VICTIM:
            time = time or str(note.time)
        if note.room == room and note.subject in WEAPONS:
            what = what or note.subject
    suspects = [n.subject for n in notes if n.subject in PEOPLE and (n.room, n.time) == (room, time)]
    return Crime(suspects[0] if suspects else "", room, time, what)


def subject_of_use(given: str, word: str, notes: Iterable[Note]) -> str:
    """The word to ask about: the room where it is known, else what was told."""
    return deduce(given, word, notes).where or word


def read_notes(text: str) -> list[Note]:
    """The notes in a text."""
    return [Note(subject, room, time or None) for room, time, subject in NOTE.findall(text)]


def score(case: Case, answers: Iterable[str]) -> float:
    """The reward: the share of the three questions that are answered right, in their order."""
    right = [case.crime.answer(question) for question in case.questions]
    said = [answer.strip().lower() for answer in answers]
    return sum(a == b for a, b in zip(said, right, strict=False)) / len(right)
