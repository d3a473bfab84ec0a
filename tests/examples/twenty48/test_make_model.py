"""Rows of games are what the chat template writes, and can be rendered again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from common.hermes import encode, not_rerendered, render
from common.pretrain import pack
from common.sampling import play_out
from transformers import AutoModelForCausalLM, AutoTokenizer
from twenty48 import make_model
from twenty48.board import DIRECTIONS, Game, first_message, make_item, next_message
from twenty48.players import play_expert
from twenty48.vocabulary import WORDS, make_tokenizer

MODEL = Path(make_model.__file__).parent / "model"


def test_a_row_is_what_the_template_writes_of_the_same_game() -> None:
    spelling = make_model.spelling()
    words = {spelling.encode(way)[0]: way for way in DIRECTIONS}
    for seed in range(30):
        row = spelling.row(seed)
        game = Game(make_item("pretrain", seed))
        messages = [first_message(game.item, game.board)]
        for place, chances in row.soft:
            assert abs(sum(chances.values()) - 1) < 1e-6
            assert row.ids[place] in chances
            way = words[row.ids[place]]
            game.play(way)
            messages.append({"role": "assistant", "content": way})
            if game.end is None:
                messages.append(next_message(game.board))
        assert game.end is not None
        assert row.ids == render(spelling.tokenizer, messages)
        assert sum(row.own) == 2 * len(row.soft), "a move is two tokens"
        assert not not_rerendered(spelling.tokenizer, messages[:6])


def test_every_word_is_one_token_after_a_space_too() -> None:
    tokenizer = make_tokenizer()
    assert [len(encode(tokenizer, word)) for word in WORDS] == [1] * len(WORDS)
    assert [len(encode(tokenizer, f" {word}")) for word in WORDS] == [1] * len(WORDS)
    assert len(encode(tokenizer, "0 2 4\n8 16 32\n0 0 64")) == 11


def test_games_do_not_repeat_and_fit_a_network() -> None:
    rows = [*make_model.make_rows(0, 20), *make_model.make_rows(1, 20)]
    assert len({tuple(row.ids) for row in rows}) == 40
    data = pack(rows)
    assert data.ids.shape[1] < 1024
    assert torch.equal((data.places > 0).sum(1), torch.tensor([len(row.soft) for row in rows]))


def test_a_game_in_process_is_the_agents() -> None:
    played, game = make_model.Played(make_item("eval", 3)), Game(make_item("eval", 3))
    assert play_expert(game.item) == 1.0
    from twenty48.players import expert_move

    while not played.done:
        move = expert_move(game.board)
        game.play(move)
        played.act({"role": "assistant", "content": f"{move}"})
    assert played.reward == game.reward == 1.0
    assert len(played.messages) == 2 * game.turns


@pytest.mark.slow
def test_the_committed_model_starts_where_the_readme_says() -> None:
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        AutoTokenizer.from_pretrained(MODEL),
    )
    assert tokenizer.backend_tokenizer.to_str() == make_tokenizer().backend_tokenizer.to_str()
    assert tokenizer.chat_template == make_tokenizer().chat_template
    torch.manual_seed(0)
    figures = play_out(model, tokenizer, [make_model.Played(make_item("eval", i)) for i in range(24)], tokens=4)
    assert 0.15 < figures["reward"] < 0.65, "the games that it has read have 0.48; 24 games are off by 0.09"
    assert figures["exact"] > 0.98
    assert 8 < figures["calls"] < 25
    assert make_model.right_answers(model.eval(), 40)["changes"] > 0.97
