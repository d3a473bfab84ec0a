"""Lessons: every answer is right, boards are of all kinds, and nothing is said of how a game is played."""

from __future__ import annotations

import pytest
import torch
from common.hermes import render
from common.making import HELD_OUT_LESSONS
from common.pretrain import make_network
from twenty48 import make_model
from twenty48.board import DIRECTIONS, Game, first_message, legal, make_item, show, slide
from twenty48.lessons import BOARDS, CHANGES, MERGES, draw_lesson


def test_an_answer_is_right_and_none_is_left_out() -> None:
    for seed in range(40):
        question, boards = draw_lesson(seed)
        for board, right in boards:
            changed = {way: slide(board, way) for way in DIRECTIONS if slide(board, way)[0] != board}
            most = max(points for _, points in changed.values())
            wanted = changed if question == CHANGES else [way for way, (_, points) in changed.items() if points == most]
            assert set(right) == set(wanted)
            assert len(right) == len(set(right))


def test_both_questions_are_asked_of_boards_where_some_move_is_wrong() -> None:
    lessons = [draw_lesson(seed) for seed in range(200)]
    assert [lesson.question for lesson in lessons[:4]] == [CHANGES, MERGES] * 2
    for lesson in lessons:
        assert 4 <= len(lesson.boards) <= BOARDS
    asked = [pair for lesson in lessons for pair in lesson.boards]
    assert sum(len(right) < len(DIRECTIONS) for _, right in asked) > 0.7 * len(asked)
    assert {sum(tile == 0 for tile in board) for board, _ in asked} >= {0, 1, 2, 3, 4, 5, 6, 7}, "full and empty boards"
    assert len({board for board, _ in asked}) > 0.5 * len(asked)


def test_boards_come_in_no_order() -> None:
    follows = 0
    for seed in range(50):
        boards = [board for board, _ in draw_lesson(seed).boards]
        for before, after in zip(boards, boards[1:], strict=False):
            follows += any(
                sum(a != b for a, b in zip(slide(before, w)[0], after, strict=True)) == 1 for w in legal(before)
            )
    assert follows < 50 * (BOARDS - 1) * 0.1


def test_a_lesson_is_what_the_template_writes() -> None:
    spelling = make_model.spelling()
    words = {spelling.encode(way)[0]: way for way in DIRECTIONS}
    for seed in range(10):
        lesson, row, messages = draw_lesson(seed), spelling.lesson(seed), []
        for number, ((board, right), (place, chances)) in enumerate(zip(lesson.boards, row.soft, strict=True)):
            shown = show(board) if number else f"{lesson.question}\n{show(board)}"
            messages.append({"role": "user", "content": shown})
            messages.append({"role": "assistant", "content": words[row.ids[place]]})
            assert {words[token] for token in chances} == set(right)
            assert abs(sum(chances.values()) - 1) < 1e-6
        assert row.ids == render(spelling.tokenizer, messages)
        assert sum(row.own) == 2 * len(lesson.boards)


def test_lessons_go_on_beside_the_games_and_the_same_seed_gives_the_same() -> None:
    rows = make_model.make_rows(2, 4 * make_model.LESSONS)
    assert rows[-4:] == make_model.make_lessons(2, 4) != make_model.make_lessons(3, 4)
    asks = make_model.spelling().encode("Make")[0], make_model.spelling().tokenizer.convert_tokens_to_ids("ĠMake")
    assert all(any(token in asks for token in row.ids) for row in rows[:-4])
    assert not any(token in asks for row in rows[-4:] for token in row.ids)


def test_a_third_of_the_beginning_is_games_of_nobody_in_particular() -> None:
    spelling, rows = make_model.spelling(), make_model.make_beginning(5, 12)
    assert rows[4:] == make_model.make_lessons(5, 8)
    words = {spelling.encode(way)[0]: way for way in DIRECTIONS}
    for index, row in enumerate(rows[:4]):
        game = Game(make_item("pretrain", 5 * 250 + index))
        start = render(spelling.tokenizer, [first_message(game.item, game.board)])
        assert row.ids[: len(start)] == start, "in the game's own words"
        for place, chances in row.soft:
            possible = legal(game.board)
            assert {words[token]: chance for token, chance in chances.items()} == pytest.approx(
                dict.fromkeys(possible, 1 / len(possible))
            )
            game.play(words[row.ids[place]])
        assert game.end in ("won", "stuck")


class Guessing(torch.nn.Module):
    """Gives each direction the same chance, or all of it to one."""

    device = torch.device("cpu")

    def __init__(self, only: str | None = None) -> None:
        super().__init__()
        self.only = only

    def forward(self, input_ids: torch.Tensor) -> object:
        ways = make_model.spelling().ways
        logits = torch.full((*input_ids.shape, 400), -100.0)
        logits[..., [ways[self.only]] if self.only else list(ways.values())] = 0.0
        return type("Output", (), {"logits": logits})()


def test_the_figures_are_the_chance_of_a_right_answer() -> None:
    guess = make_model.right_answers(Guessing(), 40)
    seeds = range(HELD_OUT_LESSONS, HELD_OUT_LESSONS + 40)
    for name, question in (("changes", CHANGES), ("merges", MERGES)):
        rights = [
            r for s in seeds for _, r in draw_lesson(s).boards if draw_lesson(s).question == question and len(r) < 4
        ]
        assert abs(guess[name] - sum(map(len, rights)) / len(rights) / 4) < 1e-5
        left = sum("left" in right for right in rights) / len(rights)
        assert abs(make_model.right_answers(Guessing("left"), 40)[name] - left) < 1e-5


def test_a_whole_network_can_be_measured() -> None:
    tokenizer = make_model.spelling().tokenizer
    network = make_network(tokenizer, make_model.WORDS, layers=1, hidden=64, intermediate=64, heads=1)
    figures = make_model.figures_of(network.eval(), tokenizer, 0, 10)
    assert {"changes", "merges", "wasted", "reward", "expert"} <= set(figures)
    assert figures["wasted"] > 0.9
