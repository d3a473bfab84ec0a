"""Tic-tac-toe against an opponent that plays at random, or perfectly: the world of the tic-tac-toe agent.

The agent is always X and always to move. Each task is an opening: a board on which at most two stones stand already. A
quarter of the openings are held out, so what the agent learns has to hold on boards that it never met.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["OPPONENTS", "Game", "Task", "best_value", "expert_move", "make_tasks", "perfect_value", "show", "winner"]

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
EMPTY = "." * 9
WON, DRAWN, LOST = "X has won", "a draw", "O has won"
OVER = "the game is over"
TAKEN = "that square is not free, X has lost"
INSTRUCTIONS = "You play X. Take three in a row. A number is a free square."


def winner(board: str) -> str | None:
    """ "X", "O", "-" for a draw, None while the game goes on. A board is nine of "X", "O" and "."."""
    for a, b, c in LINES:
        if board[a] != "." and board[a] == board[b] == board[c]:
            return board[a]
    return None if "." in board else "-"


def free(board: str) -> list[int]:
    """The free squares, 0 to 8."""
    return [i for i, stone in enumerate(board) if stone == "."]


def put(board: str, square: int, stone: str) -> str:
    """The board with one stone more."""
    return board[:square] + stone + board[square + 1 :]


def show(board: str) -> str:
    """Three lines of text; a free square shows its number, 1 to 9."""
    cells = [str(i + 1) if stone == "." else stone for i, stone in enumerate(board)]
    return "\n".join(" ".join(cells[row : row + 3]) for row in (0, 3, 6))


@functools.cache
def best_value(board: str) -> float:
    """Expected reward of the best play from here, X to move, against the random opponent."""
    return max(value_of(board, square) for square in free(board))


@functools.cache
def value_of(board: str, square: int) -> float:
    """Expected reward when X takes this free square and plays on as well as possible."""
    after = put(board, square, "X")
    if (end := winner(after)) is not None:
        return 1.0 if end == "X" else 0.0
    answers = [put(after, reply, "O") for reply in free(after)]
    ends = {"O": -1.0, "-": 0.0}
    return sum(ends[end] if (end := winner(b)) else best_value(b) for b in answers) / len(answers)


def expert_move(board: str) -> int:
    """The square with the largest expected reward."""
    return max(free(board), key=lambda square: value_of(board, square))


@functools.cache
def perfect_value(board: str) -> float:
    """The reward from here, X to move, where both play as well as possible."""
    values = []
    for square in free(board):
        after = put(board, square, "X")
        if (end := winner(after)) is not None:
            values.append(1.0 if end == "X" else 0.0)
        else:
            values.append(min(reply_value(after, reply) for reply in free(after)))
    return max(values)


def reply_value(board: str, square: int) -> float:
    """The reward when O takes this free square and both play on as well as possible."""
    after = put(board, square, "O")
    if (end := winner(after)) is not None:
        return -1.0 if end == "O" else 0.0
    return perfect_value(after)


def random_reply(board: str, rng: random.Random) -> int:
    """Any free square."""
    return rng.choice(free(board))


def perfect_reply(board: str, rng: random.Random) -> int:
    """One of the squares (0 to 8) that are best for O."""
    values = {square: reply_value(board, square) for square in free(board)}
    least = min(values.values())
    return rng.choice([square for square, value in values.items() if value == least])


OPPONENTS = {"random": random_reply, "perfect": perfect_reply}


def task_id(board: str) -> str:
    """The name of an opening, the same wherever it comes from."""
    return "tictactoe-" + board.replace(".", "_")


class Task(NamedTuple):
    """An opening. `split` is "train" or "eval"."""

    id: str
    board: str
    split: str

    @property
    def question(self) -> str:
        """What the agent is asked."""
        return f"{INSTRUCTIONS}\n{show(self.board)}"


@functools.cache
def openings() -> tuple[str, ...]:
    """Every board with X to move and at most two stones: the empty one, 9 where O began, 72 where X did."""
    boards = {EMPTY, *(put(EMPTY, o, "O") for o in range(9))}
    boards.update(put(put(EMPTY, x, "X"), o, "O") for x in range(9) for o in range(9) if o != x)
    return tuple(sorted(boards))


@functools.cache
def tasks_of(split: str) -> tuple[Task, ...]:
    """All openings of a split, in an order of their own: 62 to train on, 20 held out."""
    boards = list(openings())
    random.Random(0).shuffle(boards)
    cut = len(boards) // 4
    chosen = {"eval": boards[:cut], "train": boards[cut:]}[split]
    return tuple(Task(task_id(board), board, split) for board in chosen)


def make_tasks(split: str, count: int, seed: int = 0) -> list[Task]:
    """`count` openings of a split, shuffled by the seed; more than there are: again from the first."""
    tasks = list(tasks_of(split))
    random.Random(seed).shuffle(tasks)
    return [tasks[i % len(tasks)] for i in range(count)]


@dataclass
class Game:
    """One game. `reward` is None until it has ended; then 1 for a win, 0 for a draw, -1 for a loss."""

    board: str
    rng: random.Random
    reward: float | None = None
    opponent: str = "random"
    """A name of ``OPPONENTS``."""

    def play(self, square: int) -> str:
        """X takes a square (1 to 9), O answers. Returns what the agent sees: a board or how it ended."""
        if self.reward is not None:
            return OVER
        if not 1 <= square <= 9 or self.board[square - 1] != ".":
            self.reward = -1.0
            return TAKEN
        self.board = put(self.board, square - 1, "X")
        if winner(self.board) is None:
            self.board = put(self.board, OPPONENTS[self.opponent](self.board, self.rng), "O")
        end = winner(self.board)
        if end is None:
            return show(self.board)
        self.reward, says = {"X": (1.0, WON), "O": (-1.0, LOST), "-": (0.0, DRAWN)}[end]
        return f"{show(self.board)}\n{says}"

    async def move(self, square: int) -> str:
        """As ``play``: what an agent's tool awaits."""
        return self.play(square)
