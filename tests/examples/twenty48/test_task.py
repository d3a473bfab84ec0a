"""2048 as a task."""

from __future__ import annotations

import itertools
import random

from common.task import Task, load_task, task_names
from twenty48.board import DIRECTIONS, Game, first_message, make_items, next_message
from twenty48.task import TASK, last_board


def written(messages: list[dict[str, str]]) -> str:
    """As a judge reads it."""
    steps = []
    for number, message in enumerate(messages, 1):
        words = "\n".join(f"| {line}" for line in message["content"].splitlines())
        steps.append(f"[{number}] {message['role']}\n{words}")
    return "\n".join(steps)


def test_it_has_the_shape_of_a_task() -> None:
    assert load_task("2048") is not None
    assert "2048" in task_names()
    assert isinstance(TASK, Task)
    train, held_out = ({item.id for item in itertools.islice(TASK.items(s, 0), 100)} for s in ("train", "eval"))
    assert len(train) == len(held_out) == 100
    assert not train & held_out
    assert TASK.expert(list(itertools.islice(TASK.items("eval", 0), 60))) > 0.9


def test_the_rule_finds_in_the_transcript_what_the_game_gave() -> None:
    rng, won = random.Random(0), 0
    for item in itertools.islice(make_items("train", 2), 150):
        game = Game(item)
        messages = [first_message(item, game.board)]
        while True:
            way = rng.choice(DIRECTIONS) if rng.random() < 0.05 else rng.choice(("down", "left", "up", "right"))
            if game.turns % 4:
                from twenty48.players import expert_move

                way = expert_move(game.board)
            messages.append({"role": "assistant", "content": way})
            game.play(way)
            if game.end is not None:
                break
            messages.append(next_message(game.board))
        found = TASK.rule(written(messages))
        assert (found == 1.0) == (game.reward == 1.0)
        assert abs(found - game.reward) <= 0.25 * 4 / item.target + 1e-9, "all but the tile that came last"
        won += found == 1.0
    assert 10 < won < 140


def test_what_a_run_says_of_itself_does_not_count() -> None:
    start = "[1] user\n| Make 32.\n| 0 2 0\n| 0 0 2\n| 0 0 0\n[2] assistant\n"
    assert TASK.rule(start + "| 16 16 0\n| 0 0 0\n| 0 0 0\n| left") < 0.25
    assert TASK.rule(start + "| 32 won") < 0.25
    assert TASK.rule("") == TASK.rule("[1] user\n| hello") == 0.0


def test_a_board_has_as_many_rows_as_columns() -> None:
    assert last_board(["Make 32", "0 2", "4 8"]) == (0, 2, 4, 8)
    assert last_board(["0 2 4", "4 8"]) == ()
    assert last_board(["no board"]) == ()
