"""Players of 2048: the clumsy ones whose games the small model has read, and the scripted expert.

Each player keeps its habits for a whole game. None is crippled: each plays as well as it sees, and the better ones are the
fewest.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Mapping
from typing import NamedTuple

from twenty48.board import DIRECTIONS, Board, Game, Item, legal, slide

__all__ = ["NOBODY", "PLAYERS", "Player", "draw_player", "expert_move", "most_points", "play_expert"]

CORNER = ("down", "left")


class Player(NamedTuple):
    """Chances, each move: to look what would change the board, then to take the most points, then to keep to a corner."""

    share: float
    looks: float
    merges: float
    corner: float

    def choices(self, board: Board, rng: random.Random) -> list[str]:
        """The directions that this player finds equally good now."""
        flips = rng.random() < self.looks, rng.random() < self.merges, rng.random() < self.corner
        return list(found_good(tuple(legal(board)), most_points(board), *flips))

    def chances(self, board: Board) -> Mapping[str, float]:
        """The chance of each direction, over all that this player may find good. Do not change it: it is remembered."""
        return all_chances(self, tuple(legal(board)), most_points(board))


def most_points(board: Board) -> tuple[str, ...]:
    """The directions that change the board and make the most points."""
    points = {way: slide(board, way)[1] for way in legal(board)}
    return tuple(way for way, made in points.items() if made == max(points.values()))


def found_good(
    possible: tuple[str, ...], most: tuple[str, ...], looks: bool, merges: bool, corner: bool
) -> tuple[str, ...]:
    """What a player finds equally good that looks, merges and keeps to the corner this time, or does not."""
    if not looks:
        return DIRECTIONS
    found = most if merges else possible
    return tuple(way for way in CORNER if way in found) or found if corner else found


@functools.cache
def all_chances(player: Player, possible: tuple[str, ...], most: tuple[str, ...]) -> Mapping[str, float]:
    """One object for each of the few cases: it travels between processes once for many rows."""
    chances = dict.fromkeys(DIRECTIONS, 0.0)
    habits = (player.looks, player.merges, player.corner)
    for flips in itertools.product((True, False), repeat=len(habits)):
        good = found_good(possible, most, *flips)
        for way in good:
            chance = 1.0
            for flip, habit in zip(flips, habits, strict=True):
                chance *= habit if flip else 1 - habit
            chances[way] += chance / len(good)
    return {way: chance for way, chance in chances.items() if chance > 0}


PLAYERS = (
    Player(share=0.65, looks=0.7, merges=0.1, corner=0.1),
    Player(share=0.22, looks=0.88, merges=0.6, corner=0.2),
    Player(share=0.13, looks=0.98, merges=0.6, corner=0.9),
)

NOBODY = Player(share=0, looks=1, merges=0, corner=0)
"""Any possible move with equal chance: nobody in particular. The model has read such games before those of the players."""


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
