"""Players of mail research, and what a small model reads of them."""

from __future__ import annotations

import json
import random
from itertools import islice

import pytest
from common.hermes import encode, not_rerendered, render, tool_call
from mail import make_model
from mail.mailbox import (
    COMPACT_AFTER,
    MAX_CALLS,
    NOTES,
    READER,
    SYSTEM,
    TOOLS,
    Question,
    Research,
    mailbox_of,
    questions,
)
from mail.players import EXPERT, PLAYERS, expert_reward, play, transcripts
from mail.task import TASK
from mail.vocabulary import mail_tokenizer, words

SOME = list(islice(questions("eval"), 60))


def test_the_expert_is_right_and_the_clumsy_are_not() -> None:
    assert expert_reward(SOME) > 0.95
    rng = random.Random(0)
    means = [sum(play(q, p, rng)[0].reward for q in SOME for _ in range(4)) / len(SOME) / 4 for p in PLAYERS]
    assert means == sorted(means)
    assert means[0] < 0.3
    assert means[-1] > 0.8


def test_an_episode_is_a_main_agent_with_its_notes_and_readers() -> None:
    rng = random.Random(0)
    for question in SOME:
        _, held = play(question, EXPERT, rng)
        for messages, tools in held:
            assert (messages[0]["content"], tools) in ((SYSTEM, TOOLS), (READER, []))
        mains = [messages for messages, tools in held if tools]
        calls = [sum(bool(m.get("tool_calls")) for m in messages) for messages in mains]
        assert all(n <= COMPACT_AFTER for n in calls)
        assert sum(calls) <= MAX_CALLS
        assert [any(m["content"] == NOTES for m in messages) for messages in mains] == [True] * (len(mains) - 1) + [
            False
        ]
        for before, after in zip(mains, mains[1:], strict=False):
            assert after[1]["content"] == f"{question.text}. notes: {before[-1]['content']}"


@pytest.mark.parametrize("players", ["clumsy", "expert"])
def test_a_conversation_that_is_rendered_again_has_the_same_ids(players: str) -> None:
    tokenizer = mail_tokenizer()
    made = list(transcripts(1, 90, players))
    assert len(made) == 90
    for messages, tools in made:
        assert not_rerendered(tokenizer, messages, tools) == []


def test_every_word_is_a_token_and_a_call_is_few() -> None:
    tokenizer = mail_tokenizer()
    assert len(tokenizer) < 1000
    known = {*words(), *("Ġ" + word for word in words())}
    for messages, tools in transcripts(2, 60):
        tokens = tokenizer.convert_ids_to_tokens(render(tokenizer, messages, tools))
        assert not [t for t in tokens if len(t) == 1 and t.isalnum() and t not in known]
    said = '<tool_call>\n{"name": "search", "arguments": {"keywords": "dentist dana"}}\n</tool_call><|im_end|>'
    assert len(encode(tokenizer, said)) == 5
    said = '<tool_call>\n{"name": "read", "arguments": {"subject": "dentist dana", "hit": 2}}\n</tool_call><|im_end|>'
    assert len(encode(tokenizer, said)) == 7


def searched(question: Question, rng: random.Random) -> tuple[Research, make_model.Searching]:
    """The expert's research, and the same words said by a model."""
    research, held = play(question, EXPERT, rng)
    mains = iter([m for messages, tools in held if tools for m in messages if m["role"] == "assistant"])
    readers = iter([messages[-1] for messages, tools in held if not tools])
    searching = make_model.Searching(question)
    while not searching.done:
        searching.act(next(readers if searching.messages[0]["content"] == READER else mains))
    return research, searching


def test_a_model_searches_as_the_agent_does() -> None:
    """The expert's words, one after another: the same conversations, and the same reward."""
    rng = random.Random(0)
    for question in SOME[:20]:
        research, searching = searched(question, rng)
        assert searching.reward == research.reward


def test_a_maker_counts_the_hits_that_are_found_by_their_subjects() -> None:
    """The expert finds all. One who names a subject with the number of another finds none."""
    rng = random.Random(0)
    found, lost = list[bool](), list[bool]()
    for question in SOME[:20]:
        _, searching = searched(question, rng)
        found += searching.finds
        searching = make_model.Searching(question)
        searching.act(tool_call("search", {"keywords": question.name}))
        hits = [mail.subject for mail in searching.research.hits]
        searching.act(tool_call("read", {"subject": hits[0], "hit": 2}))
        lost += searching.finds
    assert len(found) > 10
    assert all(found)
    assert lost == [False] * 20


def test_text_in_place_of_a_call_ends_it() -> None:
    searching = make_model.Searching(SOME[0])
    searching.act({"role": "assistant", "content": "friday"})
    assert searching.done
    assert searching.reward == 0.0


def test_the_reader_reports_what_the_mail_says_about_the_words() -> None:
    from mail.players import Researcher

    for question in SOME[:20]:
        research = Research(question)
        research.search(f"{question.thing} {question.name}")
        mind = Researcher(EXPERT, question, random.Random(0))
        for hit, mail in enumerate(research.hits, 1):
            said = mind.report(str(research.brief(hit)))
            about = (mail.thing, mail.name) == (question.thing, question.name)
            pointed = f"same as {' '.join(mail.same)}" if mail.same else mail.day
            assert said == (pointed if about else "nothing")
    assert mailbox_of.cache_info().maxsize == 128


def test_the_committed_tokenizer_is_the_one_that_is_built() -> None:
    built = json.loads(mail_tokenizer().backend_tokenizer.to_str())
    assert built == json.loads((TASK.model / "tokenizer.json").read_text())
    assert (TASK.model / "model.safetensors").stat().st_size < 5_000_000
