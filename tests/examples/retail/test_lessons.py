"""Lessons: whatever they ask for has been read before, beside its thing, and nothing else is asked for."""

from __future__ import annotations

import re

from retail.domains import DOMAINS
from retail.lessons import QUESTIONS, REPEATS, lessons
from retail.make_model import LESSONS, make_lessons, make_rows
from retail.vocabulary import desk_tokenizer

TOKENIZER = desk_tokenizer()
THINGS = "|".join(thing for domain in DOMAINS.values() for thing in domain.things)


def test_the_same_seed_gives_the_same_lessons() -> None:
    assert make_lessons(3, 6) == make_lessons(3, 6) != make_lessons(4, 6)


def test_a_list_asks_for_numbers_that_it_has_given_for_the_same_thing() -> None:
    for row in lessons(TOKENIZER, 0, 40)[::2]:
        given = dict[str, int]()
        asked = 0
        for place, token in enumerate(row.ids):
            word = TOKENIZER.decode([token]).strip()
            thing = TOKENIZER.decode([row.ids[place - 1]]).strip()
            if row.own[place]:
                assert given[thing] == int(word)
                asked += 1
            elif word.isdigit():
                assert thing not in given
                given[thing] = int(word)
        assert asked == REPEATS


def test_a_question_is_answered_by_the_number_beside_its_thing() -> None:
    for row in lessons(TOKENIZER, 1, 40)[1::2]:
        text = TOKENIZER.decode(row.ids)
        numbers = dict(re.findall(rf"({THINGS}) (\d+)", text))
        answers = re.findall(rf"the ({THINGS}).*?\"id\": (\d+)", text, re.DOTALL)
        assert len(answers) == QUESTIONS
        assert all(numbers[thing] == number for thing, number in answers)
        said = TOKENIZER.decode([i for i, mine in zip(row.ids, row.own, strict=True) if mine])
        assert re.findall(r"\d+", said) == [number for _, number in answers]


def test_lessons_go_on_beside_the_conversations() -> None:
    assert make_rows(2, 4 * LESSONS)[-4:] == make_lessons(2, 4)
