"""The inbox as a task."""

from __future__ import annotations

import itertools
import random

from common.task import Task
from inbox import inbox, pretrain
from inbox.task import TASK


def transcript_text(messages: list[dict]) -> str:
    """As a judge reads it."""
    lines = []
    for message in messages:
        if message["role"] == "assistant":
            function = message["tool_calls"][0]["function"]
            lines.append(f"| {function['name']} #1 {function['arguments']}")
        else:
            lines.append(f"| {message['content']}")
    return "\n".join(lines)


def test_it_has_the_shape_of_a_task() -> None:
    assert isinstance(TASK, Task)
    train, held_out = ({item.id for item in itertools.islice(TASK.items(s, 0), 50)} for s in ("train", "eval"))
    assert len(train) == len(held_out) == 50
    assert not train & held_out


def test_the_expert_finds_the_mail() -> None:
    assert TASK.expert(list(itertools.islice(TASK.items("eval", 0), 100))) > 0.98


def test_the_rule_agrees_with_the_reward_where_the_right_mail_was_read() -> None:
    rng = random.Random(0)
    scores = []
    for task in inbox.make_tasks("train", 300):
        messages, right = pretrain.transcript(task, rng)
        scores.append(TASK.rule(transcript_text(messages)))
        assert scores[-1] == float(right)
    assert 0 < sum(scores) < 300
    assert TASK.rule("") == 0.0
