"""The cases' rules, stated once more: by brute force over who was where at what time."""

from __future__ import annotations

import itertools

import pytest
from clue.mystery import (
    KINDS,
    NOBODY,
    PEOPLE,
    VICTIM,
    WEAPONS,
    Note,
    cases,
    deduce,
    make_case,
    read_notes,
    score,
    subject_of_use,
)  # fmt: skip

SOME = list(itertools.islice(cases("eval", 3), 150))


def told(case):
    return case.given, case.crime.answer(case.given)


@pytest.mark.parametrize("case", SOME[:60], ids=lambda c: c.id)
def test_all_notes_together_allow_one_crime_only(case):
    notes = {*case.notes, *case.missing}
    possible = [
        crime
        for crime in itertools.product(*KINDS.values())
        if Note(VICTIM, crime[1], crime[2]) in notes
        and Note(crime[3], crime[1]) in notes
        and Note(crime[0], crime[1], crime[2]) in notes
        and crime[list(KINDS).index(case.given)] == case.crime.answer(case.given)
    ]
    assert possible == [tuple(case.crime)]
    assert deduce(*told(case), notes) == case.crime


def test_what_is_told_does_not_suffice_and_the_right_word_makes_it_so():
    for case in SOME:
        assert deduce(*told(case), case.notes) != case.crime
        about = subject_of_use(*told(case), case.notes)
        testimony = case.testimony(about)
        assert deduce(*told(case), [*case.notes, *read_notes(testimony)]) == case.crime
        assert case.testimony("the moon") == NOBODY


def test_what_else_is_missing_says_nothing_about_the_crime():
    for case in SOME:
        for note in case.missing[1:]:
            assert note.subject not in (case.crime.who, case.crime.what)
            assert note.room != case.crime.where
            assert note.time != case.crime.when


def test_nobody_is_in_two_rooms_when_it_happened():
    for case in SOME:
        then = [n.subject for n in (*case.notes, *case.missing) if n.time == case.crime.when]
        assert len(set(then)) == len(then)


def test_the_text_holds_the_notes_and_no_other():
    for case in SOME:
        assert read_notes(case.opening) == list(case.notes)
        assert [read_notes(note.text) for note in case.missing] == [[note] for note in case.missing]


def test_a_case_is_always_the_same_and_splits_have_none_in_common():
    assert make_case(5) == make_case(5)
    ids = [{case.id for case in itertools.islice(cases(split, 0), 300)} for split in ("train", "eval", "pretrain")]
    assert sum(map(len, ids)) == len(set.union(*ids)) == 900


def test_the_reward_is_the_share_of_right_answers():
    case = SOME[0]
    right = [case.crime.answer(q) for q in case.questions]
    assert score(case, right) == 1.0
    assert score(case, [right[0].upper(), right[1]]) == pytest.approx(2 / 3)
    assert score(case, [right[1], right[0], right[2]]) == pytest.approx(1 / 3)
    assert score(case, []) == 0.0
    assert {case.given, *case.questions} == set(KINDS)
    assert set(PEOPLE).isdisjoint(WEAPONS)
