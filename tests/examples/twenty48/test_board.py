"""The rules of 2048, against an independent statement of them."""

from __future__ import annotations

import itertools
import random

import pytest
from twenty48.board import DIRECTIONS, Game, legal, make_item, make_items, merge, read_move, show, slide


def merged_another_way(line: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """One pass from the left that writes into the result: a tile joins the last one if that is equal and not itself made now."""
    out: list[int] = []
    fresh, points = False, 0
    for tile in line:
        if tile == 0:
            continue
        if out and out[-1] == tile and not fresh:
            out[-1], fresh = 2 * tile, True
            points += 2 * tile
        else:
            out.append(tile)
            fresh = False
    return (*out, *[0] * (len(line) - len(out))), points


@pytest.mark.parametrize("length", [3, 4])
def test_every_row_merges_as_another_statement_of_the_rule_says(length: int) -> None:
    for line in itertools.product((0, 2, 4, 8), repeat=length):
        assert merge(line) == merged_another_way(line)
        assert sum(merge(line)[0]) == sum(line)


def test_the_directions_are_turns_of_each_other() -> None:
    rng = random.Random(0)
    for _ in range(200):
        size = rng.choice((3, 4))
        board = tuple(rng.choice((0, 0, 2, 4, 8)) for _ in range(size * size))

        def turned(cells: tuple[int, ...], size: int = size) -> tuple[int, ...]:
            """By a quarter, against the clock: the right column becomes the top row."""
            return tuple(cells[row * size + column] for column in reversed(range(size)) for row in range(size))

        before, after = board, {way: slide(board, way)[0] for way in DIRECTIONS}
        assert turned(after["right"]) == slide(turned(before), "up")[0]
        assert turned(after["up"]) == slide(turned(before), "left")[0]
        assert turned(after["left"]) == slide(turned(before), "down")[0]
        assert turned(after["down"]) == slide(turned(before), "right")[0]


def test_a_game_of_chance_keeps_the_rules_and_ends() -> None:
    ends = set()
    for item in itertools.islice(make_items("train", 3), 200):
        game, rng = Game(item), random.Random(item.seed)
        assert sum(tile > 0 for tile in game.board) == 2
        while game.end is None:
            before, way = game.board, rng.choice(DIRECTIONS)
            game.play(way)
            if game.end is None:
                new = sum(game.board) - sum(before)
                assert new in (2, 4), "a tile more, and nothing is lost"
                assert legal(game.board)
                assert max(game.board) < item.target
            elif game.end == "wasted":
                assert way not in legal(before)
                assert game.board == before
        ends.add(game.end)
        assert (game.reward == 1.0) == (game.end == "won") == (max(game.board) >= item.target)
        assert game.reward == 1.0 or 0 < game.reward <= 0.25
    assert ends == {"won", "stuck", "wasted"}


def test_the_same_item_and_moves_give_the_same_game() -> None:
    def play(index: int) -> list[tuple[int, ...]]:
        game, rng, boards = Game(make_item("eval", index)), random.Random(1), []
        while game.end is None:
            game.play(rng.choice(legal(game.board)))
            boards.append(game.board)
        return boards

    assert play(5) == play(5)
    assert play(5) != play(6)


def test_a_word_that_is_no_direction_loses() -> None:
    game = Game(make_item("train", 0))
    game.play("jump")
    assert game.end == "wasted"
    with pytest.raises(ValueError, match="ended"):
        game.play("left")


def test_splits_have_no_item_in_common() -> None:
    sets = [
        {item.seed for item in itertools.islice(make_items(s, seed), 300)}
        for s in ("train", "eval", "pretrain")
        for seed in (0, 1)
    ]
    assert len(set.union(*sets)) == sum(map(len, sets)) == 1800


def test_a_board_is_shown_in_rows() -> None:
    assert show((0, 2, 0, 4, 0, 16, 0, 0, 32)) == "0 2 0\n4 0 16\n0 0 32"


@pytest.mark.parametrize(
    ("reply", "move"),
    [
        ("left", "left"),
        (" Up.", "up"),
        ("not left but <move>down</move>", "down"),
        ("", ""),
        (None, ""),
        ("leftover", ""),
    ],
)
def test_the_last_direction_of_a_reply_counts(reply: str | None, move: str) -> None:
    assert read_move(reply) == move
