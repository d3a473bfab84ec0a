"""Rows, their loss and the training loop, on a network that trains in a second."""

from __future__ import annotations

import pytest
import torch
from common import hermes, pretrain

WORDS = ["a", "b", "c", "ask"]
PIECES = [hermes.fixed_call("say", word=word) for word in "abc"]


@pytest.fixture(scope="module")
def tokenizer():
    return hermes.build_tokenizer(WORDS, PIECES)


def conversation(word):
    return [{"role": "user", "content": f"ask {word}"}, hermes.tool_call("say", {"word": word})]


def make_some(seed: int, count: int) -> list[pretrain.Row]:
    tokenizer = hermes.build_tokenizer(WORDS, PIECES)
    return [pretrain.of_messages(tokenizer, conversation("abc"[(seed + i) % 3])) for i in range(count)]


def test_the_assistants_words_are_its_own(tokenizer):
    row = pretrain.of_messages(tokenizer, conversation("b") + conversation("c"))
    said = [i for i, own in zip(row.ids, row.own, strict=True) if own]
    assert tokenizer.decode(said) == PIECES[1] + hermes.END + PIECES[2] + hermes.END


@pytest.mark.slow
def test_the_same_seed_gives_the_same_rows_whatever_the_processes():
    def ids(**how):
        return [row.ids for row in pretrain.gather(make_some, count=600, **how)]

    assert ids(seed=1, processes=1) == ids(seed=1, processes=2)
    assert len(ids(seed=1, processes=1)) == 600
    assert ids(seed=1, processes=1) != ids(seed=2, processes=1)


def test_a_soft_target_is_the_cross_entropy_against_all_choices(tokenizer):
    torch.manual_seed(0)
    model = pretrain.make_network(tokenizer, WORDS, layers=1, hidden=64, intermediate=64, heads=1)
    row = pretrain.of_messages(tokenizer, conversation("a"))
    place = row.own.index(True)
    chances = {i: 1 / 3 for i in tokenizer.convert_tokens_to_ids(PIECES)}
    row.soft.append((place, chances))
    _, own = pretrain.loss_of(model, pretrain.pack([row]))
    logp = model(input_ids=torch.tensor([row.ids])).logits[0].float().log_softmax(-1)
    soft = -sum(chance * logp[place - 1, token] for token, chance in chances.items())
    end = -logp[place, row.ids[place + 1]]
    torch.testing.assert_close(own, (soft + end) / 2)


def test_it_learns_to_copy_and_a_seed_says_what(tokenizer, tmp_path):
    data = pretrain.pack(make_some(0, 30))

    def train(steps):
        torch.manual_seed(0)
        model = pretrain.make_network(tokenizer, WORDS, layers=1, hidden=64, intermediate=64, heads=1)
        return model, pretrain.train(model, data, steps=steps, batch=16, warmup=5, every=1, seed=3)

    model, curve = train(200)
    assert curve[-1] < 0.1 * curve[0], (curve[0], curve[-1])
    assert train(1)[1] == curve[:1]
    pretrain.save(model, tokenizer, tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_size < 5e6


def test_a_time_limit_ends_it(tokenizer):
    model = pretrain.make_network(tokenizer, WORDS, layers=1, hidden=64, intermediate=64, heads=1)
    assert pretrain.train(model, pretrain.pack(make_some(0, 3)), steps=10**9, batch=2, seconds=0.3)


def test_a_network_that_begins_with_finding_looks_at_what_stands_behind_the_same_token(tokenizer):
    torch.manual_seed(0)
    model = pretrain.make_network(tokenizer, WORDS, layers=3, intermediate=64, vocabulary=400, finding=True)
    model.set_attn_implementation("eager")
    ids = torch.stack([torch.randperm(400)[:30] for _ in range(20)])
    again = torch.randint(0, 25, (20,))
    ids[:, -1] = ids[torch.arange(20), again]
    with torch.no_grad():
        first, second = (layer[:, 0] for layer in model(ids, output_attentions=True).attentions[:2])
    before = first.diagonal(-1, 1, 2)
    assert before[:, 5:].mean() > 5 / 30
    behind = second[torch.arange(20), -1, again + 1]
    assert behind.mean() > 3 * second[:, -1, 1:-1].mean()
