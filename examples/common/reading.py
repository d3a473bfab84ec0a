"""Heads that a small network begins with, so that it soon reads a note of two or three tokens by any one or two of them.

In "library seven white" the room and the time lead to the person, and in "library pistol" the pistol leads to the room, which
stands before it. Lessons alone bring heads for that about late, or never.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen3ForCausalLM

__all__ = ["begin_reading", "look_back"]


def look_back(attention: Any, head: int, back: int, same: torch.Tensor) -> None:
    """Set a head's queries and keys (call it without gradients): it looks at the token that stands so many places before.

    `same`: what all embeddings share, of length 1 [hidden]. By it the head sees a place. The fastest rotary waves of query and key meet
    where the key stands there.
    """
    size, waves = attention.head_dim, 4
    speed = 10000.0 ** (-torch.arange(waves) * 2 / size)
    query, key = torch.zeros(size), torch.zeros(size)
    query[:waves] = 1
    key[:waves], key[size // 2 : size // 2 + waves] = (back * speed).cos(), (back * speed).sin()
    rows = slice(head * size, (head + 1) * size)
    for projection, wave in ((attention.q_proj, query), (attention.k_proj, key)):
        projection.weight[rows] = 2 * torch.outer(wave, same) + 0.02 * torch.randn(size, len(same))


@torch.no_grad()
def begin_reading(model: Qwen3ForCausalLM) -> None:
    """Set eight heads of a network of three layers or more, with four heads each. ``begin_finding`` comes before.

    Three heads of the first layer write down which token stands here, one before and two before, each in a part of its own.
    Heads of the next two layers compare what stands here (and before) with what was written down elsewhere, and
    copy another part of it. Which of them counts when is left to training.
    """
    size, hidden = model.config.head_dim, model.config.hidden_size
    layers = [layer.self_attn for layer in model.model.layers[:3]]
    same = torch.ones(hidden, 1) / hidden**0.5
    here, before, earlier = torch.linalg.qr(torch.cat([same, torch.randn(hidden, 3 * size)], 1))[0][:, 1:].T.split(size)
    for back, part in enumerate((here, before, earlier)):
        look_back(layers[0], back, back, same[:, 0])
        head = slice(back * size, (back + 1) * size)
        layers[0].v_proj.weight[head] = 0.35 * here
        layers[0].o_proj.weight[:, head] = 0.35 * part.T
    looked_for = (
        (1, here + before, before + earlier, here),
        (1, here, before, here),
        (1, here, here, before),
        (1, here, before, earlier),
        (2, here, earlier, before),
    )
    # Tokens are compared by the slow waves, which hardly turn on the way to a note.
    slow = 0.3 * (torch.arange(size) % (size // 2) >= size // 4)[:, None]
    for place, (layer, query, key, value) in enumerate(looked_for):
        head = slice(place % 4 * size, (place % 4 + 1) * size)
        layers[layer].q_proj.weight[head] = slow * query + 0.02 * torch.randn(size, hidden)
        layers[layer].k_proj.weight[head] = slow * key + 0.02 * torch.randn(size, hidden)
        layers[layer].v_proj.weight[head] = 0.3 * value
        layers[layer].o_proj.weight[:, head] = 0.3 * here.T
