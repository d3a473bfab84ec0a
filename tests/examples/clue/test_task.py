"""The task's shape, and that its judge's rule agrees with the reward wherever a run could know the answer."""

from __future__ import annotations

import itertools
import random

import pytest
from clue.detectives import DETECTIVES, EXPERT, play
from clue.mystery import cases, score
from clue.task import TASK
from common.task import Task, load_task
from tests.support.groups import said

from slipstream_judge.text.bare_groups import make_episode
from slipstream_judge.text.excerpts import show
from slipstream_judge.text.transcript import of_episode


def transcript(case, player, rng):
    """What a judge reads of one episode, and its reward."""
    calls, answers = [], []
    steps = list(play(case, player, rng))
    for index, (messages, reply) in enumerate(steps):
        after = steps[index + 1][0][len(messages)] if index + 1 < len(steps) else said("assistant", reply.visible)
        thought = "".join(reply.tokens[1 : reply.tokens.index("</think>")])
        calls.append({"messages": messages, "reply": [{**after, "reasoning_content": thought}]})
        if index:
            answers += reply.visible.split()
    shown = show([of_episode(make_episode("e", None, calls))])
    return f"{shown.shared}\n{shown.episodes[0]}", score(case, answers)


def test_the_task_is_found_and_has_its_shape():
    task = load_task("clue")
    assert isinstance(task, Task)
    assert task.name == "clue"
    assert TASK.expert(list(itertools.islice(TASK.items("eval", 0), 50))) == 1.0
    assert not {i.id for i in itertools.islice(TASK.items("train", 0), 50)} & {
        i.id for i in itertools.islice(TASK.items("eval", 0), 50)
    }


def test_the_judge_finds_every_answer_of_the_expert_right():
    for case in itertools.islice(cases("eval", 1), 40):
        text, reward = transcript(case, EXPERT, random.Random(0))
        assert TASK.rule(text) == reward == 1.0


def test_the_judge_counts_no_lucky_guess_and_ranks_as_the_reward_does():
    rng = random.Random(4)
    pairs = []
    for case in itertools.islice(cases("eval", 2), 300):
        text, reward = transcript(case, rng.choice(DETECTIVES), rng)
        pairs.append((TASK.rule(text), reward))
        assert pairs[-1][0] <= reward + 1e-9
    judged, real = (sum(x) / len(pairs) for x in zip(*pairs, strict=True))
    assert 0.6 * real < judged < real


def test_what_is_no_case_scores_nothing():
    assert TASK.rule("") == 0.0
    assert TASK.rule("[1] user\n| boddy died by the rope. who?\n[2] assistant\n| green in hall at nine.\n") == 0.0


@pytest.mark.parametrize("word", ["guess", "witness"])
def test_the_rubric_says_what_counts(word):
    assert word in TASK.rubric
