"""The mailbox: a thousand mails of a seed, an answer in one or two of them, and a search that finds more than was meant."""

from __future__ import annotations

import re
from itertools import islice

from mail.mailbox import (
    DAYS,
    LISTED,
    NONE,
    Mail,
    Mailbox,
    Question,
    Research,
    listing,
    mailbox_of,
    make_question,
    questions,
    value_of,
)

SOME = list(islice(questions("eval"), 40))


def looked_up(question: Question) -> str:
    """The answer, by reading all mails from their texts: a statement of its own."""
    said = {}
    for mail in mailbox_of(question).mails:
        found = re.fullmatch(
            r"(\w+) wrote on (\w+): the (\w+ for \w+) is on (?:the same day as the (\w+ for \w+)|(\w+))", mail.body
        )
        assert found is not None
        assert found[3] not in said, "no two mails are about the same"
        said[found[3]] = (found[4], found[5])
    other, day = said[f"{question.thing} for {question.name}"]
    return said[other][1] if other else day


def test_the_answer_stands_in_one_or_two_of_a_thousand_mails() -> None:
    for question in SOME:
        assert len(mailbox_of(question).mails) == 1000
        assert looked_up(question) == question.day
        assert question.thing in question.text
        assert question.name in question.text
    assert 0.2 < sum(q.same is not None for q in SOME) / len(SOME) < 0.6


def test_a_question_is_its_seed_and_held_out_ones_are_never_trained_on() -> None:
    assert make_question(7) == make_question(7)
    ids = [
        {q.id for q in islice(questions(s, seed), 300)}
        for s in ("train", "eval", "pretrain")
        for seed in (0, 1, 20_000)
    ]
    assert len(set.union(*ids)) == 1800, "seeds repeat after 10,000"


def test_a_search_finds_the_mails_with_all_of_the_words() -> None:
    """Against reading every mail."""
    for question in SOME[:8]:
        box = mailbox_of(question)
        asked = (question.thing, question.name)
        for keywords in (" ".join(asked), *asked, "the", "for dana", "same day", "is wrote", "what", "", "!?", "Dana"):
            words = re.findall(r"\w+", keywords.lower())
            wanted = [m for m in box.mails if words and set(words) <= set(re.findall(r"\w+", m.body))]
            assert box.find(keywords) == wanted, keywords


def test_both_words_narrow_it_down_and_one_does_not() -> None:
    both = [len(mailbox_of(q).find(f"{q.thing} {q.name}")) for q in SOME]
    one = [len(mailbox_of(q).find(word)) for q in SOME for word in (q.thing, q.name)]
    assert sum(both) / len(both) < 4 < 20 < sum(one) / len(one)


def test_only_the_first_hits_are_listed_and_can_be_read() -> None:
    research = Research(SOME[0])
    assert re.match(r"many mails: \w+ \w+ 1, ", research.search("the"))
    assert len(research.hits) == LISTED
    assert research.search("nobody") == NONE
    assert research.brief(1) is None
    research.search(SOME[0].name)
    assert research.brief(1) == f"words: {SOME[0].name}. mail: {research.hits[0].body}"
    assert [research.brief(hit) for hit in (0, LISTED + 1, "1", None)] == [None] * 4


def test_a_hit_is_listed_and_read_by_its_subject_and_its_number() -> None:
    research = Research(SOME[0])
    said = research.search(f"{SOME[0].thing} {SOME[0].name}")
    listed = re.findall(r"(\w+) (\w+) (\d)", said)
    assert listed == [(mail.thing, mail.name, str(hit)) for hit, mail in enumerate(research.hits, 1)]
    assert listing(["rent omar", "exam lucy"]) == "rent omar 1, exam lucy 2"
    assert value_of({"subject": "rent omar", "hit": 2}) == value_of({"hit": 2}) == 2
    assert value_of({"keywords": "rent"}) == "rent"
    assert value_of({}) == value_of(None) == value_of([1]) == ""


def test_only_the_right_day_earns_the_reward() -> None:
    research = Research(SOME[0])
    assert research.reward == 0.0
    for day in DAYS:
        research.answer = f" {day.upper()} "
        assert research.reward == float(day == SOME[0].day)


def test_a_word_of_the_format_counts_where_it_stands() -> None:
    plain = Mail("dana", "monday", "rent", "omar", "friday")
    pointing = Mail("dana", "monday", "loan", "omar", "friday", ("rent", "omar"))
    box = Mailbox([plain, pointing])
    assert box.find("same") == [pointing]
    assert box.find("the") == [plain, pointing]
    assert box.find("rent") == [plain, pointing]
