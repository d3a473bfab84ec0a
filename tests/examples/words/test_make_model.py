"""Rows of games are what the chat template writes, and can be rendered again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from common.hermes import encode, not_rerendered, render
from common.pretrain import pack
from common.sampling import play_out
from transformers import AutoModelForCausalLM, AutoTokenizer
from words import make_model
from words.game import KINDS, NUMBERS, WORDS, Game, answer, pairs
from words.players import expert_guess
from words.vocabulary import DONE, VOCABULARY, guess_message, make_tokenizer, opening_of, tools_of

MODEL = Path(make_model.__file__).parent / "model"


def test_a_row_is_what_the_template_writes_of_the_same_game() -> None:
    rng, spelling = random.Random(0), make_model.spelling()
    for kind in KINDS:
        for item in rng.sample(pairs(kind, "train"), 20):
            row, game = spelling.row(item, rng), Game(item)
            messages: list[dict[str, Any]] = [{"role": "user", "content": item.question}]
            for place, chances in row.soft:
                assert row.ids[place] in chances
                assert abs(sum(chances.values()) - 1) < 1e-6
                guess = str(spelling.tokenizer.decode([row.ids[place]]))
                messages += [guess_message(kind, guess), {"role": "tool", "content": game.guess(guess)}]
            messages.append({"role": "assistant", "content": DONE})
            assert not game.left
            assert row.ids == render(spelling.tokenizer, messages, tools_of(kind))
            assert not not_rerendered(spelling.tokenizer, messages, tools_of(kind))
            assert sum(row.own) == 4 * len(row.soft) + 2, "a guess is four tokens, the end two"


def test_a_word_a_number_and_a_mark_are_one_token_each() -> None:
    tokenizer = make_tokenizer()
    assert len(tokenizer) < 1000
    for word in VOCABULARY:
        assert len(encode(tokenizer, word)) == len(encode(tokenizer, f" {word}")) == 1, word
    for secret, guess in zip(WORDS, WORDS[1:], strict=False):
        assert len(encode(tokenizer, answer("word", secret, guess))) == 4
    assert {*WORDS, *NUMBERS} <= set(VOCABULARY)


def test_a_third_of_the_games_is_about_numbers_and_they_fit_a_network() -> None:
    rows = make_model.make_rows(1, 60)
    assert rows != make_model.make_rows(2, 60)
    data = pack(rows)
    assert data.ids.shape[1] < 512
    assert data.tokens.shape[2] == len(WORDS)
    numbers = encode(make_tokenizer(), opening_of("number"))[0]
    assert sum(numbers in row.ids for row in rows[:45]) == 15, "lessons follow"


def test_a_game_in_process_is_the_agents() -> None:
    for index in (0, 1):
        played, told = make_model.Played(make_model.held_out(5000)[index]), None
        while not played.game.left == 0:
            told = expert_guess(played.game.item.kind, played.game.told)
            played.act(guess_message(played.game.item.kind, told))
        assert told == played.game.item.secret
        assert not played.done
        played.act({"role": "assistant", "content": DONE})
        assert played.done
        assert played.reward == 1.0


def test_a_broken_call_costs_a_guess() -> None:
    played = make_model.Played(make_model.held_out(5000)[0])
    call = {"id": "a", "type": "function", "function": {"name": "guess", "arguments": '{"letter": "x"}'}}
    played.act({"role": "assistant", "content": None, "tool_calls": [call]})
    assert played.messages[-1]["content"] == "no such guess"


def test_the_committed_model_starts_where_the_readme_says() -> None:
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        AutoTokenizer.from_pretrained(MODEL),
    )
    assert tokenizer.backend_tokenizer.to_str() == make_tokenizer().backend_tokenizer.to_str()
    assert tokenizer.chat_template == make_tokenizer().chat_template
    torch.manual_seed(0)
    figures = play_out(model, tokenizer, [make_model.Played(item) for item in make_model.held_out(60)], tokens=8)
    assert 0.12 < figures["reward"] < 0.45
    assert figures["exact"] > 0.98
    assert 3 < figures["calls"] < 6
