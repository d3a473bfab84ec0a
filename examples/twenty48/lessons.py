"""Lessons that the small model reads before it reads games: which moves change a board, and which move makes the most.

A careless player's move is often one that changes nothing. From such games alone a small model learns which habit is frequent
long before it sees what a move would do. A lesson asks for nothing else. Its boards come one after another in no order, so
it says nothing about how a game is played.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from twenty48.board import DIRECTIONS, Board, Game, Item, legal, make_item
from twenty48.players import Player, most_points

__all__ = ["CHANGES", "MERGES", "Lesson", "draw_lesson"]

CHANGES = "Say one move that changes the tiles."
MERGES = "Equal tiles that meet become one. Say the move."
BOARDS = 16
"""Boards of a lesson."""
TEMPERS = (0.0, 0.5, 1.0)
"""Chances, each move, that the boards' player merges, and that it keeps to a corner: boards of all kinds."""


class Lesson(NamedTuple):
    """A question, and boards with all of their right answers."""

    question: str
    boards: list[tuple[Board, tuple[str, ...]]]


def boards_of(item: Item, rng: random.Random) -> list[Board]:
    """The boards of a game in which no move is in vain."""
    player = Player(share=1, looks=1, merges=rng.choice(TEMPERS), corner=rng.choice(TEMPERS))
    game, found = Game(item), []
    while game.end is None:
        found.append(game.board)
        game.play(rng.choice(player.choices(game.board, rng)))
    return found


def answers(question: str, board: Board) -> tuple[str, ...]:
    """The directions that are right."""
    return tuple(legal(board) if question == CHANGES else most_points(board))


def draw_lesson(seed: int) -> Lesson:
    """One lesson: boards of two games, mixed. Those on which every direction is right are left to the end."""
    rng = random.Random(seed)
    question = (CHANGES, MERGES)[seed % 2]
    items = [make_item("pretrain", (2 * seed + n) % 100_000, 2 * seed // 100_000) for n in range(2)]
    boards = [board for item in items for board in boards_of(item, rng)]
    rng.shuffle(boards)
    asked = [(board, answers(question, board)) for board in boards]
    asked.sort(key=lambda pair: len(pair[1]) == len(DIRECTIONS))
    some = asked[:BOARDS]
    rng.shuffle(some)
    return Lesson(question, some)
