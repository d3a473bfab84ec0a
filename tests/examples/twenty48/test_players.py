"""The players of 2048: none is crippled, the expert is the best by far."""

from __future__ import annotations

import itertools
import random

from twenty48.board import DIRECTIONS, Game, legal, make_items
from twenty48.players import PLAYERS, Player, draw_player, expert_move, most_points, play_expert, worth


def mean_reward(player: Player, games: int) -> float:
    rng, total = random.Random(0), 0.0
    for item in itertools.islice(make_items("eval", 1), games):
        game = Game(item)
        while game.end is None:
            game.play(rng.choice(player.choices(game.board, rng)))
        total += game.reward
    return total / games


def test_each_kind_of_player_is_better_than_the_one_before_and_the_expert_than_all() -> None:
    means = [mean_reward(player, 150) for player in PLAYERS]
    expert = sum(map(play_expert, itertools.islice(make_items("eval", 1), 150))) / 150
    assert means == sorted(means)
    assert means[0] > 0.2
    assert means[-1] + 0.05 < expert
    assert expert > 0.95


def test_most_players_are_of_the_clumsy_kind() -> None:
    rng = random.Random(0)
    drawn = [draw_player(rng) for _ in range(2000)]
    assert drawn.count(PLAYERS[0]) > drawn.count(PLAYERS[1]) > drawn.count(PLAYERS[2]) > 100
    assert sum(player.share for player in PLAYERS) == 1


def test_who_looks_makes_no_move_in_vain() -> None:
    rng = random.Random(0)
    careful = Player(share=1, looks=1, merges=0.5, corner=0.5)
    for item in itertools.islice(make_items("train"), 20):
        game = Game(item)
        while game.end is None:
            choices = careful.choices(game.board, rng)
            assert set(choices) <= set(legal(game.board))
            game.play(rng.choice(choices))
    assert Player(share=1, looks=0, merges=1, corner=1).choices(game.board, rng) == list(DIRECTIONS)


def test_the_snake_begins_in_the_lower_left_corner() -> None:
    assert worth((0, 0, 0, 0, 0, 0, 8, 4, 2)) > worth((0, 0, 0, 0, 0, 0, 2, 4, 8))
    assert worth((0, 0, 0, 0, 0, 2, 8, 4, 4)) > worth((0, 0, 0, 2, 0, 0, 8, 4, 4)), "the second row runs back"
    assert expert_move((0, 0, 0, 0, 0, 0, 4, 4, 0)) == "left"


def test_the_chances_are_those_of_the_choices() -> None:
    rng, drawn = random.Random(0), 4000
    for index, player in enumerate(PLAYERS):
        game = Game(next(itertools.islice(make_items("train"), index, None)))
        for _ in range(8):
            game.play(expert_move(game.board))
        said = [rng.choice(player.choices(game.board, rng)) for _ in range(drawn)]
        chances = player.chances(game.board)
        assert abs(sum(chances.values()) - 1) < 1e-9
        for way in DIRECTIONS:
            assert abs(said.count(way) / drawn - chances.get(way, 0)) < 0.04


def test_what_a_player_never_does_has_no_chance() -> None:
    board = (0, 0, 0, 0, 0, 0, 2, 2, 4)
    assert Player(share=1, looks=1, merges=0, corner=0).chances(board).keys() == {"left", "right", "up"}
    assert most_points(board) == ("left", "right")
    assert dict(Player(share=1, looks=1, merges=1, corner=1).chances(board)) == {"left": 1}
    assert len(Player(share=1, looks=0, merges=1, corner=1).chances(board)) == 4
