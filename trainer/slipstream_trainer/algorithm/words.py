"""What a user's words teach: the policy is distilled towards itself with the words in its context, on its own tokens.

The teacher is the policy that training started from, whose prompt holds the words too (``batch.hints``). It stands
still. The policy of now as its own teacher drifts: on the inbox, two steps of 0.002 nats moved what it made of the
words by 2.5 nats. At each position of the reply both say what they would go on with, over the whole vocabulary. The
term that words add to the loss is

    1/|T| Σ_t  w_t · words_weight · ½ [KL(π_θ ‖ m) + KL(π_teacher ‖ m)]_t,   m = ½ (π_θ + π_teacher)

T are all trained tokens of the batch, w_t the importance weight that rewards have too. What was wanted is pulled up
also where the policy said something else. This divergence (Jensen and Shannon's) is at most log 2. KL(π_θ ‖ π_teacher)
has no bound: a user who is wrong makes a teacher who denies what is right, and pulls at it the harder the more he
denies it. It is TRL's SDPO (https://arxiv.org/abs/2601.20802) with ``distillation_mode = "full_logits"``,
``distillation_alpha = 0.5`` and ``teacher_model_kind = "base"``, but for w_t, which is the engine's.

How far a step goes: rewards are few and noisy, so their step stays near (``learning_rate``). Words say at each token
where to go, so a step goes ``WAY_SHARE`` of what lies between policy and teacher, in up to ``MAX_PASSES`` passes over
the batch.
It ends before if a pass brought them no nearer. The nearer the policy is to its teacher, the shorter the steps.

A teacher who wants what the policy would hardly ever say replaces what it does and does not correct it, as with "always
answer X". So a reply does not count whose mean of KL(π_teacher ‖ π_old) is above ``words_kl`` (nats a token). Where
that is so for most replies of a batch, none of its words count (``step._mostly_refused``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from slipstream.settings import TrainerConfig
from slipstream_trainer.algorithm.learning_rate import EPISODE_NATS, TOO_FAR, Reach, evidence, steers

if TYPE_CHECKING:
    from slipstream_trainer.batch.layout import Scored

WAY_SHARE = 0.25
"""KL of a full step as a share of the divergence of policy and teacher. It is about half of the way to what lies
between them: there, KL grows with the square of the way.
"""
MAX_PASSES = 8
"""Most passes over a batch with words."""


def weights(kl_W: torch.Tensor, sample_W: torch.Tensor, t: TrainerConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """→ (how much each token counts, which are of a reply that does not count).

    ``kl_W``: KL(π_teacher ‖ π_old). ``sample_W``: which reply a token is of.
    """
    refused = (means(kl_W, sample_W) > t.words_kl)[sample_W]
    return torch.where(refused, 0.0, t.words_weight), refused


def further(t: TrainerConfig, reach: Reach, scored: Scored, weight_T: torch.Tensor, apart: float) -> Reach:
    """How far the step on a batch may go in which users' words count by ``weight_T``.

    ``apart``: the mean divergence of policy and teacher at these tokens. The others go as far as ``reach`` says.
    Refused words are no evidence: what is left of a batch of them makes a small step.
    """
    if not steers(t):
        return reach
    heard_T = (weight_T > 0).cpu().numpy()
    share = evidence(replace(scored, hinted_T=heard_T)) / evidence(scored)
    near = share * reach.target_kl
    most = min(WAY_SHARE * apart, EPISODE_NATS * scored.units / max(1, scored.tokens), t.max_kl / TOO_FAR)
    enough = min(1.0, evidence(replace(scored, hinted_T=heard_T, advantage_T=0 * scored.advantage_T)))
    more = max(0.0, most * enough - near) * float(heard_T.mean())
    return Reach(reach.rate * share**0.5, near + more)


def means(value_T: torch.Tensor, sample_T: torch.Tensor) -> torch.Tensor:
    """Each reply's mean of its tokens' values; 0 where it has none."""
    sums = value_T.new_zeros(int(sample_T.max()) + 1 if len(sample_T) else 0)
    count = sums.index_add(0, sample_T, torch.ones_like(value_T))
    return sums.index_add(0, sample_T, value_T) / count.clamp(min=1)
