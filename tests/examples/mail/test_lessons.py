"""Lessons: whatever they ask for has been read before, beside its thing and name, and nothing else is asked for."""

from __future__ import annotations

import re

from mail.lessons import ASKS, REPEATS, lessons
from mail.mailbox import LISTED, NAMES, NOTES, THINGS
from mail.make_model import LESSONS, make_lessons, make_rows
from mail.vocabulary import mail_tokenizer

TOKENIZER = mail_tokenizer()
SUBJECT = rf"(?:{'|'.join(THINGS)}) (?:{'|'.join(NAMES)})"


def text_of(ids: list[int]) -> str:
    return str(TOKENIZER.decode(ids))


def test_the_same_seed_gives_the_same_lessons() -> None:
    assert make_lessons(3, 6) == make_lessons(3, 6) != make_lessons(4, 6)


def test_a_list_asks_for_numbers_that_it_has_given_for_the_same_subject() -> None:
    for row in lessons(TOKENIZER, 0, 40)[::2]:
        given = dict[str, str]()
        asked = 0
        for place, token in enumerate(row.ids):
            number = text_of([token]).strip()
            subject = text_of(row.ids[place - 2 : place]).strip()
            if row.own[place]:
                assert given[subject] == number
                asked += 1
            elif number.isdigit():
                assert subject not in given
                given[subject] = number
        assert asked == REPEATS


def test_a_question_is_answered_by_the_number_beside_its_subject() -> None:
    kinds = set[tuple[str, str]]()
    for row in lessons(TOKENIZER, 1, 60)[1::2]:
        text = text_of(row.ids)
        hits = dict(re.findall(rf"({SUBJECT}) (\d)", text[text.index("mails:") :].partition("<|im_end|>")[0]))
        assert 2 <= len(hits) <= LISTED
        assert list(hits.values()) == [str(number) for number in range(1, len(hits) + 1)]
        wanted = re.findall(r"\|>(?:user\n.*the|(tool)\nsame as) (\w+) (?:for )?(\w+)<", text)
        replies = text_of([i for i, mine in zip(row.ids, row.own, strict=True) if mine]).split("<|im_end|>")[:-1]
        for (pointed, thing, name), reply in zip(wanted, replies, strict=True):
            subject = f"{thing} {name}"
            hit = hits[subject]
            call = (
                f'<tool_call>\n{{"name": "read", "arguments": {{"subject": "{subject}", "hit": {hit}}}}}\n</tool_call>'
            )
            assert reply in (call, f"hit {subject} {hit}")
            kinds.add((pointed, reply.split()[0]))
        assert len(replies) == ASKS
        assert text.count(NOTES) == sum("tool_call" not in reply for reply in replies)
    assert kinds == {("", "<tool_call>"), ("", "hit"), ("tool", "<tool_call>")}


def test_one_word_alone_often_does_not_tell_the_subjects_apart() -> None:
    shared = 0
    for row in lessons(TOKENIZER, 2, 200)[1::2]:
        text = text_of(row.ids)
        subjects = {tuple(s.split()) for s in re.findall(SUBJECT, text[text.index("mails:") :].partition("<")[0])}
        shared += any(len(set(words)) < len(words) for words in zip(*subjects, strict=True))
    assert shared > 60


def test_lessons_go_on_beside_the_conversations() -> None:
    assert make_rows(2, 4 * LESSONS)[-4:] == make_lessons(2, 4)
