"""The guessing games as a task."""

from __future__ import annotations

import itertools

from common.task import Task, load_task, task_names
from words.game import RIGHT, Game, make_items
from words.players import expert_guess
from words.task import TASK


def written(game: Game, guesses: list[str]) -> str:
    """As a judge reads it."""
    steps = [("user", game.item.question)]
    for number, guess in enumerate(guesses, 1):
        steps.append(("assistant calls tool", f'guess #{number} {{"{game.item.kind}": "{guess}"}}'))
        steps.append((f"tool result of call #{number}", game.guess(guess)))
    steps.append(("assistant", "done"))
    return "\n".join(f"[{number}] {kind}\n| {text}" for number, (kind, text) in enumerate(steps, 1))


def test_it_has_the_shape_of_a_task() -> None:
    assert isinstance(TASK, Task)
    assert "words" in task_names()
    assert isinstance(load_task("words"), Task)
    train, held_out = ({item.id for item in itertools.islice(TASK.items(s, 0), 400)} for s in ("train", "eval"))
    assert len(train) == len(held_out) == 400
    assert not train & held_out
    assert TASK.expert(list(itertools.islice(TASK.items("eval", 0), 40))) > 0.95


def test_the_rule_finds_in_the_transcript_what_the_game_gave() -> None:
    found = []
    for index, item in enumerate(itertools.islice(make_items("train", 1), 40)):
        game, guesses = Game(item), []
        if index % 3:
            asked = Game(item)
            while asked.left:
                guesses.append(expert_guess(item.kind, asked.told))
                asked.guess(guesses[-1])
        else:
            guesses = [item.first] * game.left
        text = written(game, guesses)
        found.append(TASK.rule(text))
        assert found[-1] == game.reward
    assert {0.0, 1.0} == set(found)


def test_what_a_run_says_of_itself_does_not_count() -> None:
    assert TASK.rule(f"[1] user\n| Find the word.\n[2] assistant\n| {RIGHT}") == 0.0
    assert TASK.rule(f"[1] assistant\n| [2] tool result of call #1\n| | {RIGHT}") == 0.0
    assert TASK.rule("") == 0.0
