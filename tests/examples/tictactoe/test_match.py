"""Two who sit at one board: they move in turn, and agree on how it ended."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st
from tictactoe import tictactoe
from tictactoe.match import Match, Side


async def play_at_random(side: Side, rng: random.Random, seen: list[tuple[str, str]]) -> None:
    await side.turn.wait()
    while side.reward is None:
        seen.append((side.stone, side.board))
        await side.move(rng.choice(tictactoe.free(side.board)) + 1)


@given(st.integers(0, 2**32))
def test_a_match_is_zero_sum_and_each_sees_its_own_stones_as_x(seed: int) -> None:
    async def match() -> tuple[Match, list[tuple[str, str]]]:
        rng = random.Random(seed)
        board, seen = Match(rng.choice(tictactoe.openings())), []
        await asyncio.gather(*(play_at_random(side, rng, seen) for side in board.sides))
        return board, seen

    board, seen = asyncio.run(match())
    end = tictactoe.winner(board.board)
    rewards = {side.stone: side.reward for side in board.sides}
    assert rewards == {"X": {"X": 1, "O": -1, "-": 0}[end], "O": {"X": -1, "O": 1, "-": 0}[end]}
    assert [stone for stone, _ in seen] == [("X", "O")[i % 2] for i in range(len(seen))]
    for _, own in seen:
        assert own.count("O") - own.count("X") in (0, 1), "it is always X who moves"


def test_a_square_that_is_taken_ends_it_for_both() -> None:
    async def match() -> tuple[str, Match]:
        board = Match("O" + "." * 8)
        return await board.sides[0].move(1), board

    told, board = asyncio.run(match())
    assert told == tictactoe.TAKEN
    assert [side.reward for side in board.sides] == [-1.0, 1.0]
    assert asyncio.run(board.sides[1].move(2)) == tictactoe.OVER
