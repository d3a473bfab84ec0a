"""The heads that a network begins with: before any training a note is found by two of its words, or by the one behind it."""

from __future__ import annotations

import pytest
import torch
from common import hermes, pretrain

WORDS = ["a", "b", "c", "ask"]
NOTES = 8


@pytest.fixture(scope="module")
def attention():
    """Notes of three words and a dot, then the first two words of one of them: who looks where. → (layers, notes' numbers)."""
    torch.manual_seed(0)
    tokenizer = hermes.build_tokenizer(WORDS, [])
    model = pretrain.make_network(tokenizer, WORDS, layers=3, intermediate=64, vocabulary=400, reading=True)
    model.set_attn_implementation("eager")
    firsts, seconds = torch.randint(0, 4, (40, NOTES)), torch.arange(NOTES) % 4 + 10
    firsts[:, 4:] = (firsts[:, :4] + 1) % 4  # a word of a note stands in others, too, but no two words do
    thirds = torch.stack([torch.randperm(300)[:NOTES] + 50 for _ in range(40)])
    notes = torch.stack([firsts, seconds.expand(40, -1), thirds, torch.full((40, NOTES), 40)], 2)
    wanted = torch.randint(0, NOTES, (40,))
    asked = notes[torch.arange(40), wanted]
    ids = torch.cat([notes.flatten(1), asked[:, :2], torch.full((40, 1), 41), asked[:, 2:3]], 1)
    with torch.no_grad():
        return model(ids, output_attentions=True).attentions, wanted


def test_three_heads_look_here_one_before_and_two_before(attention):
    first = attention[0][0]
    for back in range(3):
        assert first[:, back].diagonal(-back, 1, 2)[:, 5:].mean() > 0.9


def test_two_words_find_the_word_behind_them(attention):
    layers, wanted = attention
    after_two = layers[1][:, 0, 4 * NOTES + 1, : 4 * NOTES]
    thirds = after_two[:, 2::4]
    assert (thirds.argmax(1) == wanted).float().mean() > 5 / NOTES


def test_a_word_finds_where_it_stood_before(attention):
    layers, wanted = attention
    again = layers[1][:, 2, 4 * NOTES + 3, : 4 * NOTES]
    assert (again.argmax(1) == 4 * wanted + 2).float().mean() > 0.7
