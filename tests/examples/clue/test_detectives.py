"""The players: what they say fits the case, and the one who never errs beats those whom the small model has read."""

from __future__ import annotations

import itertools
import random

from clue.detectives import DETECTIVES, EXERCISES, EXPERT, exercises, expert_reward, play, transcripts
from clue.mystery import cases, score

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
            read = " ".join(str(m["content"]) for m in messages)
            assert all(token.strip() in read for token in reply.tokens[1 : reply.tokens.index("</think>")])
            assert not reply.could


def test_an_exercise_is_answered_by_one_of_its_notes():
    rng = random.Random(3)
    for case in SOME[:100]:
        page = exercises(case, rng)
        notes = [note.text for note in case.notes]
        answers = [str(message["content"]) for message in page if message["role"] == "assistant"]
        assert len(answers) == EXERCISES
        assert all(f"{answer.strip()}." in notes for answer in answers)
        assert all(note in str(page[1]["content"]) for note in notes), "the notes stand before the first question"


def test_the_same_seed_gives_the_same_calls():
    first, again, other = (list(transcripts(seed, 5)) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 15
