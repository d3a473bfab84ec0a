"""The players: what they say fits the case, and the one who never errs beats those whom the small model has read."""

from __future__ import annotations

import itertools
import random

from clue.detectives import DETECTIVES, EXPERT, expert_reward, play, transcripts
from clue.mystery import cases, read_notes, score
from clue.vocabulary import UNKNOWN

SOME = list(itertools.islice(cases("eval"), 600))


def reward(case, player, rng):
    _, first, second = (reply for _, reply in play(case, player, rng))
    return score(case, [*first.visible.split(), *second.visible.split()])


def test_the_expert_solves_all_and_the_others_in_the_order_of_their_care():
    rng = random.Random(1)
    means = [sum(reward(case, player, rng) for case in SOME) / len(SOME) for player in DETECTIVES]
    mixture = sum(d.share * mean for d, mean in zip(DETECTIVES, means, strict=True))
    assert expert_reward(SOME) == 1.0
    assert means == sorted(means)
    assert 0.2 <= mixture <= 0.4
    assert abs(sum(d.share for d in DETECTIVES) - 1) < 1e-9


def test_a_detective_knows_only_what_was_told():
    """Whoever reasons names nothing that the messages do not hold, but for what he guesses."""
    for case in SOME[:50]:
        for messages, reply in play(case, EXPERT, random.Random(2)):
            read = " ".join([UNKNOWN, *(str(m["content"]) for m in messages)])
            assert all(token.strip() in read for token in reply.tokens[1 : reply.tokens.index("</think>")])
            assert not reply.could


def test_each_word_that_is_thought_stands_in_a_note_with_the_word_before_it():
    for case in SOME[:50]:
        read = " ".join(note.text for note in (*case.notes, *case.missing))
        for _, reply in list(play(case, EXPERT, random.Random(3)))[1:]:
            words = [token.strip() for token in reply.tokens[1 : reply.tokens.index("</think>")]]
            assert words[0] == case.crime.answer(case.given)
            assert len(words) == len(set(words)) or words[0] == words[2] == case.crime.where
            for one, next_ in itertools.pairwise(words):
                assert any({one, next_} <= set(note) for note in read_notes(read))


def test_the_same_seed_gives_the_same_calls():
    first, again, other = (list(transcripts(seed, 5)) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 15
