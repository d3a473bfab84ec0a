"""The small tic-tac-toe model: its rows are what the chat template writes, and the committed weights play as README says."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from tictactoe import make_model, tictactoe
from tictactoe.tictactoe import Game, make_tasks
from tictactoe.vocabulary import TOOLS, Spelling, build_tokenizer, move_message
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = Path(tictactoe.__file__).parent / "model"


@pytest.fixture(scope="module", params=["built", "committed"])
def spelling(request: pytest.FixtureRequest) -> Spelling:
    tokenizer = build_tokenizer() if request.param == "built" else AutoTokenizer.from_pretrained(MODEL)
    return Spelling(tokenizer)


def test_a_conversation_that_is_rendered_again_has_the_ids_that_were_sampled(spelling: Spelling) -> None:
    rng = random.Random(0)
    for task in make_tasks("train", 20):
        game = Game(task.board, rng)
        messages = [{"role": "user", "content": task.question}]
        row = list(spelling.prompt(task.question))
        while game.reward is None:
            square = rng.choice(tictactoe.free(game.board)) + 1
            seen = game.play(square)
            messages.append(move_message(square))
            row += spelling.move(square)
            if game.reward is None:
                messages.append({"role": "tool", "content": seen})
                row += spelling.answer(seen)
        text = str(spelling.tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=False))
        assert spelling.encode(text) == row


def test_a_move_is_four_tokens_and_a_word_is_one(spelling: Spelling) -> None:
    assert [len(spelling.move(square)) for square in range(1, 10)] == [4] * 9
    assert len(spelling.encode("Take three in a row")) == 5


def test_rows_know_where_the_squares_stand(spelling: Spelling) -> None:
    rows = make_model.make_games(seed=1, count=50)
    for row in rows:
        assert len(row.soft) * 4 == sum(row.own)
        for place, chances in row.soft:
            assert row.ids[place] in spelling.squares
            assert set(chances) <= set(spelling.squares)
            assert sum(chances.values()) == pytest.approx(1)


def test_the_built_tokenizer_is_the_saved_one() -> None:
    built = build_tokenizer()
    assert json.loads(built.backend_tokenizer.to_str()) == json.loads((MODEL / "tokenizer.json").read_text())
    assert built.chat_template == (MODEL / "chat_template.jinja").read_text()


@pytest.mark.slow
def test_the_committed_model_starts_where_the_readme_says() -> None:
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    torch.manual_seed(0)
    figures = make_model.figures_of(model, AutoTokenizer.from_pretrained(MODEL), games=100, k=4, seed=0)
    assert -0.1 < figures["reward"] < 0.5
    assert figures["exact"] > 0.99
    assert figures["pass@4"] > 0.8
    assert sum(p.numel() for p in model.parameters()) < 2_500_000
