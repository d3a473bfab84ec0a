"""The tasks that the folder holds."""

from __future__ import annotations

import itertools

import pytest
from common.task import Task, load_task, task_names
from tictactoe.task import TASKS
from tictactoe.tictactoe import best_value, perfect_value, tasks_of


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_task_has_its_shape_and_splits_that_share_nothing(name: str) -> None:
    task = load_task(name)
    assert isinstance(task, Task)
    assert name in task_names()
    assert (task.model / "model.safetensors").is_file()
    train, held_out = ({item.id for item in itertools.islice(task.items(s, 0), 200)} for s in ("train", "eval"))
    assert not train & held_out
    again = itertools.islice(task.items("train", 5), 20)
    assert [item.id for item in again] == [item.id for item in itertools.islice(task.items("train", 5), 20)]


def test_the_expert_is_the_best_play_against_the_opponent() -> None:
    held_out = tasks_of("eval")
    mean = sum(best_value(item.board) for item in held_out) / len(held_out)
    assert TASKS["tictactoe"].expert(held_out) == TASKS["tictactoe-self"].expert(held_out) == pytest.approx(mean)
    perfect = sum(perfect_value(item.board) for item in held_out) / len(held_out)
    assert TASKS["tictactoe-perfect"].expert(held_out) == pytest.approx(perfect)
    assert perfect < mean


def test_a_transcript_without_moves_is_worth_nothing() -> None:
    for text in ("", "| hello", '| play #1 {"square": 5}', '| 1 2 3\n| 4 5 6\n| 7 8 9\n| play #1 {"square": "x"}'):
        assert TASKS["tictactoe"].rule(text) == 0.0
