"""The game's rules, the openings' split, the best play, and the players that the small model has read."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tictactoe import players
from tictactoe import tictactoe as game
from tictactoe.task import TASKS


def play(task: game.Task, move, rng: random.Random) -> float:
    board = game.Game(task.board, rng)
    while board.reward is None:
        board.play(move(board.board) + 1)
    return board.reward


def test_held_out_openings_are_never_trained_on() -> None:
    train, held_out = ({t.board for t in game.tasks_of(split)} for split in ("train", "eval"))
    assert not train & held_out
    assert (len(train), len(held_out)) == (62, 20)


def test_it_is_always_x_who_moves() -> None:
    for board in game.openings():
        assert board.count("O") - board.count("X") in (0, 1)
        assert game.winner(board) is None


@pytest.mark.parametrize(
    ("board", "says"), [("XX.OO....", "X"), ("OO.XX...X", None), ("XOXXOXOXO", "-"), ("OOO.XX.X.", "O")]
)
def test_winner(board: str, says: str | None) -> None:
    if says == "X":
        board = game.put(board, 2, "X")
    assert game.winner(board) == says


def test_a_board_shows_the_numbers_of_free_squares() -> None:
    assert game.show("X...O....") == "X 2 3\n4 O 6\n7 8 9"


@given(st.integers(0, 2**32), st.integers(-2, 12))
def test_a_square_that_is_not_free_loses(seed: int, square: int) -> None:
    rng = random.Random(seed)
    board = game.Game(rng.choice(game.openings()), rng)
    legal = 1 <= square <= 9 and board.board[square - 1] == "."
    said = board.play(square)
    if legal:
        assert board.board[square - 1] == "X"
    else:
        assert (board.reward, said) == (-1.0, game.TAKEN)
    if board.reward is not None:
        assert board.play(1) == "the game is over"


@given(st.integers(0, 2**32))
def test_every_game_ends_within_five_moves(seed: int) -> None:
    rng = random.Random(seed)
    board = game.Game(rng.choice(game.openings()), rng)
    for _ in range(5):
        if board.reward is None:
            board.play(rng.choice(game.free(board.board)) + 1)
    assert board.reward in (-1.0, 0.0, 1.0)


def test_the_best_play_reaches_what_is_computed_for_it() -> None:
    rng = random.Random(0)
    tasks = game.tasks_of("eval") * 50
    got = sum(play(task, game.expert_move, rng) for task in tasks) / len(tasks)
    assert got == pytest.approx(sum(game.best_value(t.board) for t in tasks) / len(tasks), abs=0.02)


def test_better_players_win_more_and_the_mixture_is_mediocre() -> None:
    rng = random.Random(0)
    tasks = game.tasks_of("train") * 20

    def level(player: players.Player | None) -> float:
        total = 0.0
        for task in tasks:
            one = player or players.draw_player(rng)
            total += play(task, lambda board: rng.choice(one.choices(board, rng)), rng)  # noqa: B023
        return total / len(tasks)

    beginner, casual, keen = (level(player) for player in players.PLAYERS)
    assert beginner < casual < keen < 0.9
    assert 0.1 < level(None) < 0.35


def test_make_tasks_begins_again_after_the_last() -> None:
    tasks = game.make_tasks("eval", 45, seed=3)
    assert len({t.id for t in tasks}) == 20
    assert tasks[0] == tasks[20] == tasks[40]
    assert all(t.split == "eval" for t in tasks)


@given(st.integers(0, 2**32), st.sampled_from(["random", "perfect"]))
def test_a_judge_can_tell_from_the_calls_how_a_game_ended(seed: int, opponent: str) -> None:
    """The agent makes no call after its last move, so no call shows the board that the move led to."""
    rng = random.Random(seed)
    board = game.Game(rng.choice(game.openings()), rng, opponent=opponent)
    shown = game.show(board.board)
    lines = [f"{game.INSTRUCTIONS}", *shown.splitlines()]
    number = 0
    while board.reward is None:
        number += 1
        square = rng.randint(1, 9)
        lines.append(f'play #{number} {{"square": {square}}}')
        shown = board.play(square)
        lines += shown.splitlines() if board.reward is None else []
    text = "\n".join(f"| {line}" for line in lines)
    assert TASKS["tictactoe"].rule(text) == (board.reward + 1) / 2


def test_nobody_beats_the_perfect_opponent_from_the_empty_board() -> None:
    assert game.perfect_value(game.EMPTY) == 0
    rng = random.Random(0)
    for _ in range(100):
        board = game.Game(game.EMPTY, rng, opponent="perfect")
        while board.reward is None:
            board.play(rng.choice(game.free(board.board)) + 1)
        assert board.reward <= 0


def test_the_perfect_value_is_what_two_perfect_players_get() -> None:
    """A player who looks one move ahead with ``perfect_value`` gets it from every opening."""
    rng = random.Random(0)

    def best(board: str) -> int:
        def value(square: int) -> float:
            after = game.put(board, square, "X")
            if (end := game.winner(after)) is not None:
                return float(end == "X")
            return min(game.reply_value(after, reply) for reply in game.free(after))

        return max(game.free(board), key=value)

    for opening in game.openings():
        board = game.Game(opening, rng, opponent="perfect")
        while board.reward is None:
            board.play(best(board.board) + 1)
        assert board.reward == game.perfect_value(opening)
