"""What a user's words teach: the policy is distilled towards itself with the words in its context, on its own tokens.

The teacher is the policy before the step, whose prompt holds the words too (``batch.hints``). The per-token reverse
KL on sampled tokens, KL(π_θ ‖ π_teacher), has the gradient -E[(log π_teacher - log π_θ) ∇ log π_θ], so the advantage
of a token is

    A = clip(log π_teacher - log π_old, -words_clip, words_clip) · words_weight

and the loss is the one that rewards have: the same importance weights, guards and KL term. With ``loss = "cispo"`` it
is what TRL's SDPO computes in its mode ``sampled_token`` (https://arxiv.org/abs/2601.20802), but for the clip.

A teacher who would hardly have said anything of the reply replaces what the model does and does not correct it, as with
"always answer X". So a reply does not count whose mean of log π_old - log π_teacher is above ``words_kl`` (nats a
token).
"""

from __future__ import annotations

import torch

from slipstream.settings import TrainerConfig


def advantages(
    teacher_T: torch.Tensor, old_T: torch.Tensor, sample_T: torch.Tensor, t: TrainerConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """→ (advantages, 0 where a reply does not count; which tokens are of such a reply).

    ``teacher_T``: NaN for tokens about which nothing was said. ``sample_T``: which reply a token is of.
    """
    said = ~teacher_T.isnan()
    change = torch.where(said, teacher_T - old_T, 0.0)
    far = means(change, sample_T) < -t.words_kl
    refused = said & far[sample_T]
    kept = said & ~refused
    return torch.where(kept, change.clamp(-t.words_clip, t.words_clip) * t.words_weight, 0.0), refused


def means(value_T: torch.Tensor, sample_T: torch.Tensor) -> torch.Tensor:
    """Each reply's mean of its tokens' values; 0 where it has none."""
    sums = value_T.new_zeros(int(sample_T.max()) + 1 if len(sample_T) else 0)
    count = sums.index_add(0, sample_T, torch.ones_like(value_T))
    return sums.index_add(0, sample_T, value_T) / count.clamp(min=1)
