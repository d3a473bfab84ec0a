"""Players of 2048: the clumsy ones whose games the small model has read, and the scripted expert.

Each player keeps its habits for a whole game. None is crippled: each plays as well as it sees, and the better ones are the
fewest.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from twenty48.board import DIRECTIONS, Board, Game, Item, legal, slide

__all__ = ["PLAYERS", "Player", "draw_player", "expert_move", "play_expert"]


class Player(NamedTuple):
    """Chances, each move: to look what would change the board, then to take the most points, then to keep to a corner."""

    share: float
    looks: float
    merges: float
    corner: float

    def choices(self, board: Board, rng: random.Random) -> list[str]:
        """The directions that this player finds equally good now."""
        if rng.random() >= self.looks:
            return list(DIRECTIONS)
        found = legal(board)
        if rng.random() < self.merges:
            most = max(slide(board, way)[1] for way in found)
            found = [way for way in found if slide(board, way)[1] == most]
        if rng.random() < self.corner:
            found = [way for way in ("down", "left") if way in found] or found
        return found


PLAYERS = (
    Player(share=0.65, looks=0.7, merges=0.1, corner=0.1),
    Player(share=0.22, looks=0.88, merges=0.6, corner=0.2),
    Player(share=0.13, looks=0.98, merges=0.6, corner=0.9),
)


def draw_player(rng: random.Random) -> Player:
    """A player, by the shares."""
    return rng.choices(PLAYERS, [p.share for p in PLAYERS])[0]


def worth(board: Board) -> float:
    """How well the tiles stand in a snake that begins in the lower left corner: each place counts four times the next."""
    size = round(len(board) ** 0.5)
    rows = [board[row : row + size] for row in range(0, len(board), size)]
    snake = [tile for turn, row in enumerate(reversed(rows)) for tile in (row if turn % 2 == 0 else row[::-1])]
    return sum(tile / 4**place for place, tile in enumerate(snake))


def expert_move(board: Board) -> str:
    """The direction after which the tiles stand best: what a person's rule of thumb would do."""
    return max(legal(board), key=lambda way: worth(slide(board, way)[0]))


def play_expert(item: Item) -> float:
    """The expert's reward in one game."""
    game = Game(item)
    while game.end is None:
        game.play(expert_move(game.board))
    return game.reward
