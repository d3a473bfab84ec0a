"""Lessons that the small model reads before it reads games: which squares complete a row.

Most players see few of the rows that they could complete. From their games alone a small model learns slowly what a row of two
is. A lesson shows boards that have nothing to do with each other. Before each stands who is to have won with one more stone.
It says nothing about which of the two matters more, or where to play when there is no row of two.
"""

from __future__ import annotations

import random

from common.pretrain import Row

from tictactoe.players import completing
from tictactoe.tictactoe import EMPTY, LOST, WON, put, show, winner
from tictactoe.vocabulary import Spelling

__all__ = ["lessons"]

BOARDS = 4
"""Boards of a lesson."""
SAYS = {"X": WON, "O": LOST}


def any_board(stone: str, rng: random.Random) -> str:
    """A board on which X is to move, nobody has won, and one more of these stones wins."""
    while True:
        own = rng.randint(1, 4)
        stones = ["X"] * own + ["O"] * min(own + rng.randint(0, 1), 8 - own)
        board = EMPTY
        for square, one in zip(rng.sample(range(9), len(stones)), stones, strict=True):
            board = put(board, square, one)
        if winner(board) is None and completing(board, stone):
            return board


def lesson(spelling: Spelling, rng: random.Random) -> Row:
    """Some boards, one after the other, and what completes a row on each."""
    row = Row([], [])
    for turn in range(BOARDS):
        stone = rng.choice("XO")
        board = any_board(stone, rng)
        text = f"{SAYS[stone]}\n{show(board)}"
        row.ids += spelling.answer(text) if turn else spelling.prompt(text)
        row.own += [False] * (len(row.ids) - len(row.own))
        right = completing(board, stone)
        row.soft.append((len(row.ids) + 1, {spelling.squares[s]: 1 / len(right) for s in right}))
        row.ids += spelling.move(rng.choice(right) + 1)
        row.own += [True] * (len(row.ids) - len(row.own))
    return row


def lessons(spelling: Spelling, seed: int, count: int) -> list[Row]:
    """`count` lessons as rows."""
    rng = random.Random(seed)
    return [lesson(spelling, rng) for _ in range(count)]
