"""The mail task: its judge's rule agrees with the reward, from nothing but the transcript that a judge reads."""

from __future__ import annotations

import random
from itertools import islice

from common.task import Task, load_task
from mail.mailbox import Question
from mail.players import EXPERT, PLAYERS, Conversation, Player, play
from mail.task import TASK

from slipstream_judge.text.excerpts import Shortening, show_episode
from slipstream_judge.text.transcript import SEPARATE_CONVERSATION_TEXT, Branch, Node, Reader, Transcript


def transcript(held: list[Conversation]) -> str:
    """What RULER shows of an episode's conversations: the first is the main line, the others are branches."""
    branches, number = [], 0
    for messages, _ in held:
        reader = Reader()
        reader.read(messages)
        branch = Branch(0, SEPARATE_CONVERSATION_TEXT if branches else "", 1)
        for step in reader.end():
            number += 1
            branch.nodes.append(Node(step, number, branch))
        branches.append(branch)
    return show_episode(Transcript(branches, []), 0, [], Shortening())


def played(question: Question, player: Player, rng: random.Random) -> tuple[float, float]:
    """(reward, the rule's score) of one run."""
    research, held = play(question, player, rng)
    return research.reward, TASK.rule(transcript(held))


def test_it_is_a_task_that_is_found_by_its_name() -> None:
    assert isinstance(load_task("mail"), Task)


def test_train_and_eval_have_no_question_in_common() -> None:
    both = [{q.id for q in islice(TASK.items(split, 0), 500)} for split in ("train", "eval")]
    assert not both[0] & both[1]


def test_a_judge_who_sees_only_the_transcript_agrees_with_the_reward() -> None:
    rng = random.Random(0)
    some = list(islice(TASK.items("eval", 0), 60))
    pairs = [played(q, rng.choices(PLAYERS, [p.share for p in PLAYERS])[0], rng) for q in some for _ in range(3)]
    agree = [reward == (score == 1.0) for reward, score in pairs]
    assert sum(agree) / len(agree) > 0.9, "they differ where a wrong mail happened to say the right day"
    assert not [pair for pair in pairs if pair[0] < pair[1] == 1.0], "a full score is never wrong"


def test_the_expert_gets_what_it_earns() -> None:
    rng = random.Random(0)
    some = list(islice(TASK.items("eval", 1), 60))
    assert TASK.expert(some) > 0.95
    assert all(reward == (score == 1.0) for reward, score in (played(q, EXPERT, rng) for q in some))


def test_nothing_and_nonsense_score_nothing() -> None:
    assert TASK.rule("") == TASK.rule("(nothing was recorded)") == TASK.rule('| answer #1 {"text": "friday"}') == 0.0
