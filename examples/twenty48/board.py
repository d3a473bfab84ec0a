"""2048 on a small board: the world of the 2048 agent.

A turn slides all tiles to one side; equal tiles that meet become one of twice the value, and a new 2 (or, one time in ten,
4) appears on a free square. The game is won when a tile reaches the target. It is lost when no move is left, or by a move
that changes nothing. A task is a seed: it decides the first two tiles and where new ones appear.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from common.worlds import first_seed

__all__ = [
    "DIRECTIONS",
    "Game",
    "Item",
    "first_message",
    "legal",
    "make_item",
    "make_items",
    "next_message",
    "read_move",
    "show",
    "slide",
]

Board = tuple[int, ...]
"""Rows from the top, one after another: 0 for a free square, else the tile's value."""

DIRECTIONS = ("left", "right", "up", "down")
SIZE, TARGET = 3, 32
RULES = (
    "Slide the tiles. Equal tiles that meet become one. Make {target}. "
    "A move that changes nothing loses. Say left right up or down."
)
CONSOLATION = 0.25  # the most that a lost game is worth


@functools.cache
def merge(line: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """A row after it slid to the left, and the sum of the tiles that were made. A tile is made from two at most once a move."""
    left = [tile for tile in line if tile]
    made: list[int] = []
    points = 0
    while left:
        tile = left.pop(0)
        if left and left[0] == tile:
            tile += left.pop(0)
            points += tile
        made.append(tile)
    return (*made, *(0,) * (len(line) - len(made))), points


@functools.cache
def lines(size: int) -> dict[str, tuple[tuple[int, ...], ...]]:
    """For each direction, the squares of each line, beginning at the side to which its tiles slide."""
    rows = [tuple(range(r * size, (r + 1) * size)) for r in range(size)]
    columns = [tuple(range(c, size * size, size)) for c in range(size)]
    return {
        "left": tuple(rows),
        "right": tuple(row[::-1] for row in rows),
        "up": tuple(columns),
        "down": tuple(column[::-1] for column in columns),
    }


@functools.lru_cache(maxsize=1_000_000)
def slide(board: Board, direction: str) -> tuple[Board, int]:
    """The board after a move, before a new tile appears, and the sum of the tiles that were made."""
    after = list(board)
    points = 0
    for line in lines(round(len(board) ** 0.5))[direction]:
        tiles, more = merge(tuple(board[square] for square in line))
        points += more
        for square, tile in zip(line, tiles, strict=True):
            after[square] = tile
    return tuple(after), points


def legal(board: Board) -> list[str]:
    """The directions that change the board."""
    return [direction for direction in DIRECTIONS if slide(board, direction)[0] != board]


def show(board: Board) -> str:
    """A line of text for each row; 0 is a free square."""
    size = round(len(board) ** 0.5)
    return "\n".join(" ".join(map(str, board[row : row + size])) for row in range(0, len(board), size))


class Item(NamedTuple):
    """One game to play. `seed` decides every tile that appears."""

    id: str
    seed: int
    size: int = SIZE
    target: int = TARGET

    @property
    def question(self) -> str:
        """What the agent is told before it sees the board."""
        return RULES.format(target=self.target)


def first_message(item: Item, board: Board) -> dict[str, str]:
    """The user's first message: the rules and the board."""
    return {"role": "user", "content": f"{item.question}\n{show(board)}"}


def next_message(board: Board) -> dict[str, str]:
    """The user's message after a move: the board."""
    return {"role": "user", "content": show(board)}


def read_move(reply: str | None) -> str:
    """The last direction that a reply names; empty where it names none."""
    return next((w for w in reversed(re.findall(r"[a-z]+", (reply or "").lower())) if w in DIRECTIONS), "")


def make_item(split: str, index: int, seed: int = 0, *, size: int = SIZE, target: int = TARGET) -> Item:
    """The index-th item of a split in the run with this seed (100,000 items a run, 10,000 runs)."""
    if not 0 <= index < 100_000:
        raise ValueError(f"index {index} is not in 0..99999")
    number = first_seed(split, seed) + index
    return Item(f"2048-{size}x{size}-{target}-{number}", number, size, target)


def make_items(split: str, seed: int = 0, *, size: int = SIZE, target: int = TARGET) -> Iterator[Item]:
    """The items of a split, without end; after 100,000 again from the first."""
    index = 0
    while True:
        yield make_item(split, index % 100_000, seed, size=size, target=target)
        index += 1


@dataclass
class Game:
    """One game. `end` is None until it has ended; then "won", "stuck" or "wasted" (a move that changed nothing)."""

    item: Item
    board: Board = ()
    end: str | None = None
    turns: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.item.seed)
        if not self.board:
            self.board = self.grown(self.grown((0,) * self.item.size**2))

    def grown(self, board: Board) -> Board:
        """The board with one tile more."""
        free = [square for square, tile in enumerate(board) if not tile]
        square = self.rng.choice(free)
        return (*board[:square], 4 if self.rng.random() < 0.1 else 2, *board[square + 1 :])

    def play(self, direction: str) -> None:
        """One turn. A word that is no direction changes nothing, so it loses."""
        if self.end is not None:
            raise ValueError("the game has ended")
        self.turns += 1
        after = slide(self.board, direction)[0] if direction in DIRECTIONS else self.board
        if after == self.board:
            self.end = "wasted"
            return
        self.board = after
        if max(after) >= self.item.target:
            self.end = "won"
            return
        self.board = self.grown(after)
        if not legal(self.board):
            self.end = "stuck"

    @property
    def reward(self) -> float:
        """1 for a game that is won, else a quarter at most: by how much of the target's value lies on the board."""
        if self.end == "won":
            return 1.0
        return CONSOLATION * min(1.0, sum(self.board) / self.item.target)
