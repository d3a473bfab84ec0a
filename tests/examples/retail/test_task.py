"""The retail task: its judge's rule agrees with the reward, from nothing but the transcript that a judge reads."""

from __future__ import annotations

import random
from itertools import islice
from typing import Any

from common.task import Task, load_task
from retail.players import EXPERT, PLAYERS, play
from retail.task import TASK, heard

from slipstream_judge.text.excerpts import Shortening, show_episode
from slipstream_judge.text.transcript import Branch, Node, Reader, Transcript


def transcript(messages: list[dict[str, Any]]) -> str:
    """What RULER shows of a conversation."""
    reader = Reader()
    reader.read(messages)
    branch = Branch(0, "", 1)
    branch.nodes += [Node(step, number, branch) for number, step in enumerate(reader.end(), 1)]
    return show_episode(Transcript([branch], []), 0, [], Shortening())


def test_it_is_a_task_that_is_found_by_its_name() -> None:
    assert isinstance(load_task("retail"), Task)


def test_train_and_eval_have_no_case_in_common() -> None:
    both = [{c.id for c in islice(TASK.items(split, 0), 500)} for split in ("train", "eval")]
    assert not both[0] & both[1]


def test_a_judge_who_sees_only_the_transcript_agrees_with_the_reward() -> None:
    rng = random.Random(0)
    apart = []
    for case in islice(TASK.items("eval", 0), 300):
        player = rng.choices(PLAYERS, [p.share for p in PLAYERS])[0]
        desk, messages = play(case, player, rng)
        apart.append(abs(desk.reward - TASK.rule(transcript(messages))))
    assert sum(apart) / len(apart) < 0.1
    assert sum(gap == 1.0 for gap in apart) <= 3


def test_the_expert_gets_the_full_score() -> None:
    rng = random.Random(0)
    some = list(islice(TASK.items("eval", 1), 100))
    assert TASK.expert(some) == 1.0
    assert all(TASK.rule(transcript(play(case, EXPERT, rng)[1])) == 1.0 for case in some)


def test_nothing_and_nonsense_score_nothing() -> None:
    assert TASK.rule("") == TASK.rule("(nothing was recorded)") == TASK.rule("[1] assistant\n| done") == 0.0
    assert list(heard("[1] user\n| a\n| b\n[2] assistant\n| c")) == [("user", "a\nb"), ("assistant", "c")]
