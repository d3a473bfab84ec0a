"""The task 2048."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from common.task import Item, needs
from common.transcript import steps

from twenty48.board import CONSOLATION, SIZE, TARGET, Board, make_items, read_move, slide
from twenty48.board import Item as Seeded
from twenty48.players import play_expert

if TYPE_CHECKING:
    from twenty48.agent import Player

__all__ = ["TASK", "Twenty48"]

ROW = re.compile(r"\d+( \d+)+")
ASKED = re.compile(r"\bMake (\d+)\.")


class Twenty48:
    """2048; as it stands on three rows of three, to 32: about twenty calls a game."""

    name = "2048"
    model = Path(__file__).with_name("model")
    rubric = (
        "1 where a tile reaches the target, else at most a quarter: by the sum of the tiles as a share of the target."
    )

    def __init__(self, size: int = SIZE, target: int = TARGET) -> None:
        self.size, self.target = size, target

    def items(self, split: str, seed: int) -> Iterator[Seeded]:
        """Games; the same item has the same tiles as long as the moves are the same."""
        return make_items(split, seed, size=self.size, target=self.target)

    def expert(self, items: Sequence[Item]) -> float:
        """A rule of thumb: keep the tiles sorted in a snake that begins in a corner."""
        return sum(play_expert(cast("Seeded", item)) for item in items) / max(1, len(items))

    def rule(self, transcript: str) -> float:
        """The game's own reward, worked out from the last board that is shown and the last move."""
        target = 0
        board: Board = ()
        after: Board = ()
        for kind, lines in steps(transcript):
            if kind == "user":
                target = target or next((int(match[1]) for line in lines if (match := ASKED.search(line))), 0)
                board = last_board(lines)
            elif kind == "assistant" and board:
                after = slide(board, move)[0] if (move := read_move("\n".join(lines))) else board
        if not target or not after:
            return 0.0
        return 1.0 if max(after) >= target else CONSOLATION * min(1.0, sum(after) / target)

    async def open(self, base_url: str) -> Player:
        """The agent, which asks for the model by the task's name."""
        with needs("pip install openai"):
            from twenty48.agent import Player
        return Player(base_url, model=self.name)


def last_board(lines: Sequence[str]) -> Board:
    """The board that ends a message; empty where there is none."""
    rows = [tuple(map(int, line.split())) for line in lines if ROW.fullmatch(line.strip())]
    size = len(rows[-1]) if rows else 0
    last = rows[-size:] if size else []
    return tuple(tile for row in last for tile in row) if len(last) == size and len({*map(len, last)}) == 1 else ()


TASK = Twenty48()
