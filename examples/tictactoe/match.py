"""A game with two players who both sit at a model: each sees its own stones as X, and waits while the other thinks."""

from __future__ import annotations

import asyncio

from tictactoe.tictactoe import DRAWN, LOST, OVER, TAKEN, WON, put, show, winner

__all__ = ["Match", "Side"]

SWAPPED = str.maketrans("XO", "OX")


class Side:
    """One player's seat. `reward` is None until the match has ended; then 1 for a win, 0 for a draw, -1 for a loss."""

    def __init__(self, match: Match, stone: str) -> None:
        self.match, self.stone = match, stone
        self.reward: float | None = None
        self.turn = asyncio.Event()

    @property
    def board(self) -> str:
        """The board as this player sees it."""
        return self.match.board if self.stone == "X" else self.match.board.translate(SWAPPED)

    async def move(self, square: int) -> str:
        """Put a stone on a square (1 to 9), and wait for the other's move. Returns the board, or how the match ended."""
        if self.reward is not None:
            return OVER
        if not 1 <= square <= 9 or self.board[square - 1] != ".":
            self.leave()
            return TAKEN
        self.match.board = put(self.match.board, square - 1, self.stone)
        if (end := winner(self.match.board)) is not None:
            self.match.end(end)
        else:
            self.turn.clear()
            self.match.other(self).turn.set()
            await self.turn.wait()
        if self.reward is None:
            return show(self.board)
        return f"{show(self.board)}\n{ {1.0: WON, 0.0: DRAWN, -1.0: LOST}[self.reward] }"

    def leave(self) -> None:
        """Stop playing. Before the end that is a loss."""
        if self.reward is None:
            self.match.end(self.match.other(self).stone)


class Match:
    """One game. X moves first."""

    def __init__(self, board: str) -> None:
        self.board = board
        self.sides = (Side(self, "X"), Side(self, "O"))
        self.sides[0].turn.set()

    def other(self, side: Side) -> Side:
        """The player on the other side."""
        return self.sides[side.stone == "X"]

    def end(self, winning: str) -> None:
        """The match has ended: the stone that won, or "-"."""
        for side in self.sides:
            side.reward = 0.0 if winning == "-" else 1.0 if side.stone == winning else -1.0
            side.turn.set()
