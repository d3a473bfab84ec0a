"""The small tic-tac-toe model: its rows are what the chat template writes, and the committed weights play as README says."""

from __future__ import annotations

import random
from pathlib import Path

import make_model
import pytest
import tictactoe
import torch
from tictactoe import Game, make_tasks
from transformers import AutoModelForCausalLM, AutoTokenizer
from vocabulary import build_tokenizer, move_message

MODEL = Path(tictactoe.__file__).parent / "model"


@pytest.fixture(scope="module", params=["built", "committed"])
def spelling(request: pytest.FixtureRequest) -> make_model.Spelling:
    tokenizer = build_tokenizer() if request.param == "built" else AutoTokenizer.from_pretrained(MODEL)
    return make_model.Spelling(tokenizer)


def test_a_conversation_that_is_rendered_again_has_the_ids_that_were_sampled(spelling: make_model.Spelling) -> None:
    rng = random.Random(0)
    for task in make_tasks("train", 20):
        game = Game(task.board, rng)
        messages = [{"role": "user", "content": task.question}]
        row = list(spelling.prompt(task))
        while game.reward is None:
            square = rng.choice(tictactoe.free(game.board)) + 1
            seen = game.play(square)
            messages.append(move_message(square))
            row += spelling.move(square)
            if game.reward is None:
                messages.append({"role": "tool", "content": seen})
                row += spelling.answer(seen)
        text = str(spelling.tokenizer.apply_chat_template(messages, tools=make_model.TOOLS, tokenize=False))
        assert spelling.encode(text) == row


def test_a_move_is_four_tokens_and_a_word_is_one(spelling: make_model.Spelling) -> None:
    assert [len(spelling.move(square)) for square in range(1, 10)] == [4] * 9
    assert len(spelling.encode("Take three in a row")) == 5


def test_rows_know_where_the_squares_stand(spelling: make_model.Spelling) -> None:
    rows = make_model.make_rows(spelling, 50, seed=1)
    moves = rows.places > 0
    assert torch.equal(moves.sum(1) * 4, rows.own.sum(1))
    row, turn = moves.nonzero(as_tuple=True)
    assert set(rows.ids[row, rows.places[row, turn]].tolist()) <= set(spelling.squares)
    torch.testing.assert_close(rows.squares[row, turn].sum(-1), torch.ones(len(row)))


def test_the_committed_model_starts_where_the_readme_says() -> None:
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    spelling = make_model.Spelling(AutoTokenizer.from_pretrained(MODEL))
    torch.manual_seed(0)
    played = make_model.play_out(model, spelling, make_tasks("eval", 100), random.Random(0))
    assert -0.1 < sum(reward for reward, _ in played) / 100 < 0.5
    assert sum(p.numel() for p in model.parameters()) < 2_500_000
