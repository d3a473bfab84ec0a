"""Lessons: on each board all squares that complete the row are right, and nothing else is."""

from __future__ import annotations

import random
import re

from common.making import LESSONS
from tictactoe.lessons import BOARDS, any_board, lesson
from tictactoe.make_model import make_lessons, make_rows, own_spelling, rows_seen
from tictactoe.tictactoe import LINES, put, winner

SPELLING = own_spelling()
SHOWN = re.compile(r"([XO]) has won\n((?:[XO1-9] [XO1-9] [XO1-9]\n?){3})")


def test_the_same_seed_gives_the_same_lessons() -> None:
    assert make_lessons(3, 8) == make_lessons(3, 8) != make_lessons(4, 8)


def test_a_board_has_a_row_of_two_to_complete_and_x_is_to_move() -> None:
    rng = random.Random(0)
    for stone in "XO" * 100:
        board = any_board(stone, rng)
        assert winner(board) is None
        assert board.count("O") - board.count("X") in {0, 1}
        assert any(winner(put(board, s, stone)) == stone for s in range(9) if board[s] == ".")


def test_all_squares_that_complete_the_row_are_right_and_equally_so() -> None:
    rng = random.Random(0)
    for _ in range(60):
        row = lesson(SPELLING, rng)
        shown = SHOWN.findall(SPELLING.tokenizer.decode(row.ids))
        assert len(shown) == len(row.soft) == BOARDS
        for (stone, text), (place, chances) in zip(shown, row.soft, strict=True):
            cells = text.split()
            # stated once more: the third cell of a line that has two of this stone and a number
            lines = [[cells[i] for i in line] for line in LINES]
            right = {c for line in lines if line.count(stone) == 2 for c in line if c.isdigit()}
            assert {SPELLING.tokenizer.decode([token]) for token in chances} == right
            assert len(set(chances.values())) == 1
            assert abs(sum(chances.values()) - 1) < 1e-6
            assert row.ids[place] in chances


def test_only_moves_are_the_models_to_say() -> None:
    row = lesson(SPELLING, random.Random(1))
    assert len(row.own) == len(row.ids)
    assert sum(row.own) == 4 * BOARDS


def test_a_quarter_of_the_rows_are_lessons() -> None:
    texts = [SPELLING.tokenizer.decode(row.ids) for row in make_rows(0, 40)]
    assert sum("You play X" not in text for text in texts) == 40 // LESSONS


def test_an_untrained_network_sees_no_rows() -> None:
    import torch
    from common.pretrain import make_network
    from tictactoe.vocabulary import words

    torch.manual_seed(0)
    assert rows_seen(make_network(SPELLING.tokenizer, words()), 4) < 0.2
