"""Players whose games the small model has read: most of them clumsy.

Each player sees some of what the board offers. One that sees nothing takes a square at random. None is crippled: each plays
as well as it sees, and the better ones are the fewest.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from tictactoe.tictactoe import LINES, free, put, winner

__all__ = ["PLAYERS", "Player", "draw_player"]


class Player(NamedTuple):
    """Chances, each move: to look where it is free, to see an own row of two, to see one of the opponent's."""

    share: float
    looks: float
    attacks: float
    defends: float

    def choices(self, board: str, rng: random.Random) -> list[int]:
        """The squares (0 to 8) that this player finds equally good now."""
        if rng.random() >= self.looks:
            return list(range(9))
        if rng.random() < self.attacks and (wins := completing(board, "X")):
            return wins
        if rng.random() < self.defends and (threats := completing(board, "O")):
            return threats
        return free(board)


PLAYERS = (
    Player(share=0.70, looks=0.85, attacks=0.15, defends=0.05),
    Player(share=0.20, looks=0.95, attacks=0.5, defends=0.3),
    Player(share=0.10, looks=0.99, attacks=0.98, defends=0.9),
)


def completing(board: str, stone: str) -> list[int]:
    """Free squares that complete a row of this stone."""
    squares = {s for line in LINES for s in line if board[s] == "."}
    return sorted(s for s in squares if winner(put(board, s, stone)) == stone)


def draw_player(rng: random.Random) -> Player:
    """A player, by the shares."""
    return rng.choices(PLAYERS, [p.share for p in PLAYERS])[0]
