"""The recipe of the small model, in short, and the quality of the one that lies in the repository."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from common.pretrain import make_network, pack, train
from inbox import inbox, pretrain
from inbox.tokenizer import build_tokenizer, words

MODEL = Path(inbox.__file__).parent / "model"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tests share the machine: one thread each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_clumsy_searcher_is_as_clumsy_as_he_should_be() -> None:
    rng = random.Random(0)
    successes = [pretrain.transcript(task, rng)[1] for task in inbox.make_tasks("pretrain", 2000)]
    assert 0.22 <= sum(successes) / len(successes) <= 0.33


def test_only_the_assistants_tokens_are_its_own() -> None:
    tokenizer = build_tokenizer()
    rows, _ = pretrain.make_rows(tokenizer, 5, seed=0)
    for row in rows:
        said = tokenizer.decode([i for i, mine in zip(row.ids, row.own, strict=True) if mine])
        assert said.startswith('<tool_call>\n{"name": "search"')
        assert said.endswith('"}}\n</tool_call><|im_end|>')
        assert "<|im_start|>" not in said
        assert "mail" not in said
        assert sum(row.own) % 4 == 0


def test_the_keyword_stands_for_all_words_of_the_question() -> None:
    tokenizer = build_tokenizer()
    task = inbox.make_task(3)
    messages, _ = pretrain.transcript(task, random.Random(0))
    ((place, chances),) = pretrain.make_row(tokenizer, task, messages).soft
    row = pretrain.make_row(tokenizer, task, messages)
    assert tokenizer.decode([row.ids[place]]) in task.question.split()
    assert {tokenizer.decode([token]) for token in chances} == set(task.question.split())
    assert sum(chances.values()) == pytest.approx(1)


@pytest.mark.slow
def test_the_recipe_in_short() -> None:
    """A few dozen small steps teach the format and most of the copying."""
    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    model = make_network(tokenizer, words())
    data = pack(pretrain.make_rows(tokenizer, 100, 0)[0])
    losses = train(model, data, steps=60, batch=16, warmup=50, every=1)
    assert losses[0] > 5.0
    assert sum(losses[-5:]) / 5 < 0.25 * losses[0]


@pytest.mark.slow
def test_the_committed_model_starts_where_it_should() -> None:
    """Success at the start, exact continuation, and that the right answer is within reach of sampling."""
    from inbox.rollout import load, measure

    figures = measure(str(MODEL), tasks=400, k=32, k_tasks=8, seed=1)
    assert 0.17 <= figures["success"] <= 0.35
    assert figures["pass@32"] >= 0.85
    assert figures["exact_continuations"] >= 0.99
    assert figures["tokens_per_call"] < 4.5
    assert figures["scripted_ceiling"] >= 0.98
    model, tokenizer = load(str(MODEL))
    assert model.config.model_type == "qwen3"
    assert 2e6 < sum(p.numel() for p in model.parameters()) < 4e6
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.decode([tokenizer.eos_token_id]) == "<|im_end|>"


def test_the_weights_are_small_enough_to_be_kept() -> None:
    assert sum(f.stat().st_size for f in MODEL.glob("*.safetensors")) <= 8 * 2**20
