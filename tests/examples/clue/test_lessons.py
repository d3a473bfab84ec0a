"""Lessons: each question has one answer in the notes that were read before it, and nothing else is asked for."""

from __future__ import annotations

import itertools
import random
import re

from clue.lessons import LISTED, QUESTIONS, lessons, lookups
from clue.make_model import LESSONS, make_lessons, make_rows, tokenizer_once
from clue.mystery import KINDS, PEOPLE, VICTIM, Note, cases, read_notes
from clue.vocabulary import THINK, THOUGHT, UNKNOWN
from common.hermes import END

TOKENIZER = tokenizer_once()
ANSWERS = {*(word for words in KINDS.values() for word in words), UNKNOWN}
ASKED = re.compile(rf"\b({'|'.join(KINDS)})((?: (?:{'|'.join(ANSWERS)}))+)")


def answers(notes: list[Note], asked: str, keys: list[str]) -> set[str]:
    """What the notes answer, stated once more: by a look at every note."""
    if asked in ("when", "with what"):
        *led, room = keys
        assert all(any({word, room} <= set(note) for note in notes) for word in led)
        keys = [room]
    fitting = [note for note in notes if set(keys) <= set(note)]
    if asked == "who":
        return {note.subject for note in fitting if note.subject in PEOPLE}
    if asked == "with what":
        return {note.subject for note in fitting if note.time is None}
    if asked == "when":
        return {str(note.time) for note in fitting if note.subject == VICTIM}
    return {note.room for note in fitting if note.time is None or note.subject == VICTIM}


def right(text: str, asked: str, words: str) -> bool:
    *keys, answer = words.split()
    return answers(read_notes(text), asked, keys) == ({answer} - {UNKNOWN})


def test_the_same_seed_gives_the_same_lessons() -> None:
    assert make_lessons(3, 6) == make_lessons(3, 6) != make_lessons(4, 6)


def test_a_list_asks_for_the_last_word_of_each_answer() -> None:
    for row in lessons(TOKENIZER, 0, 60)[::2]:
        text = TOKENIZER.decode(row.ids)
        asked = ASKED.findall(text)
        assert len(asked) == LISTED
        assert all(right(text, *question) for question in asked)
        said = [TOKENIZER.decode([i]).strip() for i, own in zip(row.ids, row.own, strict=True) if own]
        assert said == [words.split()[-1] for _, words in asked]


def test_a_question_is_answered_by_a_thought_that_finds_the_word_and_by_the_word() -> None:
    for row in lessons(TOKENIZER, 1, 60)[1::2]:
        text = TOKENIZER.decode(row.ids)
        asked = re.findall(
            rf"({'|'.join(KINDS)}) ([\w ]+)\?<.*?assistant\n<think> ([\w ]+)</think>(\w+)<", text, re.DOTALL
        )
        assert len(asked) == QUESTIONS
        for question, keys, thought, answer in asked:
            assert thought == f"{keys} {answer}"
            assert right(text, question, thought)
            assert answer != UNKNOWN
        said = TOKENIZER.decode([i for i, own in zip(row.ids, row.own, strict=True) if own])
        assert said.split(END)[:-1] == [f"{THINK} {thought}{THOUGHT}{answer}" for _, _, thought, answer in asked]


def test_every_kind_of_lookup_is_asked_for_and_some_have_no_answer() -> None:
    case = next(cases("pretrain"))
    rng = random.Random(0)
    listed = list(lookups(case.notes, case.missing, rng))
    assert {question.asked for question in listed} == set(KINDS)
    unknown = [question for question in listed if question.answer == UNKNOWN]
    assert 0 < len(unknown) < len(listed) / 2
    everything = lookups([*case.notes, *case.missing], [], rng)
    assert not [question for question in everything if question.answer == UNKNOWN]


def test_lessons_go_on_beside_the_cases() -> None:
    assert make_rows(2, 4 * LESSONS)[-4:] == make_lessons(2, 4)
    assert len(make_rows(2, 30)) == 30
    assert not any(row.soft for row in itertools.islice(make_lessons(5, 8), 8))
