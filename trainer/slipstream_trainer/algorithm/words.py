"""What a user's words teach: the policy is distilled towards itself with the words in its context, on its own tokens.

The teacher is the policy that training started from, whose prompt holds the words too (``batch.hints``). It stands
still. The policy of now as its own teacher drifts: on the inbox, two steps of 0.002 nats moved what it made of the
words by 2.5 nats. At each position of the reply both say what they would go on with, over the whole vocabulary. The
term that words add to the loss is

    1/|T| Σ_t  w_t · words_weight · KL(π_θ ‖ π_teacher)_t

T are all trained tokens of the batch, w_t the importance weight that rewards have too. It is what the
term on sampled tokens estimates. Here what was wanted is pulled up also where the policy said something else, and what
it would never say hardly counts. The other KL copies a teacher's own mistakes (on the inbox: it reads before it
searches). It is TRL's SDPO (https://arxiv.org/abs/2601.20802) with ``distillation_mode = "full_logits"``,
``distillation_alpha = 1`` and ``teacher_model_kind = "base"``, but for w_t, which is the engine's.

A teacher who wants what the policy would hardly ever say replaces what it does and does not correct it, as with "always
answer X". So a reply does not count whose mean of KL(π_teacher ‖ π_old) is above ``words_kl`` (nats a token).
"""

from __future__ import annotations

import torch

from slipstream.settings import TrainerConfig


def weights(kl_W: torch.Tensor, sample_W: torch.Tensor, t: TrainerConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """→ (how much each token counts, which are of a reply that does not count).

    ``kl_W``: KL(π_teacher ‖ π_old). ``sample_W``: which reply a token is of.
    """
    refused = (means(kl_W, sample_W) > t.words_kl)[sample_W]
    return torch.where(refused, 0.0, t.words_weight), refused


def means(value_T: torch.Tensor, sample_T: torch.Tensor) -> torch.Tensor:
    """Each reply's mean of its tokens' values; 0 where it has none."""
    sums = value_T.new_zeros(int(sample_T.max()) + 1 if len(sample_T) else 0)
    count = sums.index_add(0, sample_T, torch.ones_like(value_T))
    return sums.index_add(0, sample_T, value_T) / count.clamp(min=1)
