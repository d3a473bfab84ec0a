"""The small model's data, its vocabulary, and that it can be made and played with."""

from __future__ import annotations

import itertools
import random

import torch
from clue.detectives import EXPERT, TOOLS, play, transcripts
from clue.make_model import Played, make_rows, row, tokenizer_once
from clue.mystery import ROOMS, cases, read_notes
from clue.vocabulary import THINK, THOUGHT, words
from common.hermes import END, encode, parse, render
from common.pretrain import make_network, pack, train

TOKENIZER = tokenizer_once()


def test_every_word_of_a_case_is_one_token():
    alphabet = set(range(len(TOKENIZER))) - set(encode(TOKENIZER, "".join(map(chr, range(97, 123)))))
    for messages, reply in transcripts(7, 30):
        ids = row(TOKENIZER, messages, reply).ids
        assert set(ids) <= alphabet, TOKENIZER.decode(ids)


def test_a_reply_is_what_the_row_says_and_chances_sum_to_one():
    for messages, reply in transcripts(8, 30):
        made = row(TOKENIZER, messages, reply)
        prompt = render(TOKENIZER, messages, TOOLS, ask=True)
        assert made.ids[: len(prompt)] == prompt
        assert TOKENIZER.decode(made.ids[len(prompt) :]) == "".join(reply.tokens) + END
        assert made.own == [False] * len(prompt) + [True] * (len(made.ids) - len(prompt))
        for place, chances in made.soft:
            assert abs(sum(chances.values()) - 1) < 1e-9
            assert made.ids[place] in chances


def test_reasoning_is_dropped_from_the_history_and_nothing_else_is():
    case = next(cases("eval"))
    (asked, ask), (answered, answer), (_, _) = play(case, EXPERT, random.Random(0))
    reply = parse("".join(ask.tokens))
    assert reply["content"] == "".join(ask.tokens[: ask.tokens.index(THOUGHT) + 1])
    told = {"role": "tool", "content": case.testimony(ask.tokens[-2])}
    as_sent = [*asked, reply, told]
    ids = render(TOKENIZER, as_sent, TOOLS, ask=True)
    assert ids == render(TOKENIZER, answered, TOOLS, ask=True)
    text = TOKENIZER.decode(ids)
    assert THINK not in text
    assert "".join(ask.tokens[ask.tokens.index(THOUGHT) + 1 :]) in text
    # A server that takes the reasoning apart sends it back in a field of its own: the same ids.
    apart = {**reply, "content": None, "reasoning": " library", "reasoning_content": " library"}
    assert render(TOKENIZER, [*asked, apart, told], TOOLS, ask=True) == ids
    assert answer.visible in case.crime


def test_words_have_one_spelling():
    assert len(set(words())) == len(words())
    for word in words():
        assert len(encode(TOKENIZER, word)) == len(encode(TOKENIZER, " " + word)) == 1


def test_a_case_played_by_the_expert_in_process_gives_the_whole_reward():
    for case in itertools.islice(cases("eval", 5), 40):
        played = Played(case)
        replies = (parse("".join(reply.tokens)) for _, reply in play(case, EXPERT, random.Random(0)))
        for message in replies:
            assert not played.done
            played.act(message)
        assert played.done
        assert played.reward == 1.0
        assert played.finds
        assert all(found for _, found in played.finds)
        assert read_notes(str(played.messages[3]["content"])) in [[note] for note in case.missing]


def test_a_word_that_was_not_found_ends_the_count():
    case = next(case for case in cases("eval") if case.given == "with what" and case.crime.where in case.opening)
    played = Played(case)
    wrong = next(room for room in ROOMS if room != case.crime.where)
    for thought in ("hm", f"{case.crime.what} {wrong} {case.crime.when}"):
        played.look(f"{THINK} {thought}{THOUGHT}", "who")
    assert [found for _, found in played.finds] == [False]


def test_the_network_learns_from_the_rows():
    torch.manual_seed(0)
    model = make_network(TOKENIZER, words(), layers=1, hidden=64, intermediate=64, heads=1)
    data = pack(make_rows(0, 32))
    curve = train(model, data, steps=6, batch=8, lr=5e-3, warmup=2, every=2)
    assert curve[-1] < curve[0]
