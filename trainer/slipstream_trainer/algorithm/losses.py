"""The losses: TRL's, with its settings and how a part of a batch is normalised so that parts add up to the whole; and
functions of a user's own.

T are all trained tokens of a batch, i an episode (its tokens are the loss's sequence), r_t = π_θ / π_old of a
token, A its advantage, w_t = min(π_old / π_engine, is_max) its importance weight (truncated importance sampling,
https://fengyao.notion.site/off-policy-rl):

    grpo     mean_i 1/|i| Σ_t  w_t · -min(r_t A, clip(r_t, 1-ε, 1+ε_high) A)      https://arxiv.org/abs/2402.03300
    bnpo     the same terms, 1/|T| Σ_t                                           https://arxiv.org/abs/2506.02355
    dapo     the same terms, 1/|T| Σ_t (T of all ranks and micro-batches)        https://arxiv.org/abs/2503.14476
    dr_grpo  the same terms, 1/(N · LENGTH) Σ_t, N episodes                       https://arxiv.org/abs/2503.20783
    cispo    1/|T| Σ_t  w_t · -min(r_t, 1+ε_high).detach() A log π_θ             https://arxiv.org/abs/2506.13585
    gspo     grpo's with r_i = exp(mean_t log r_t) in place of r_t                https://arxiv.org/abs/2507.18071
             (log r_t = 0 where w_t is zero)
    sapo     mean_i 1/|i| Σ_t  w_t · -4/τ σ(τ (r_t - 1)) A, τ by A's sign         https://arxiv.org/abs/2511.20347

With β, each term gains β · r · (exp(d) - d - 1), d = log π_ref - log π_θ (k3 with bias correction,
https://arxiv.org/abs/2512.02556). r is r_t without a clip, and for gspo r_i: there a token's KL pulls at all tokens of
its episode. π_ref is the adapter that training started from (``init_adapter``), else the base
model, as in TRL. Where w_t is zero (a guarded call), this term is zero too: such a token pulls at nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from slipstream.errors import ConfigError
from slipstream.settings import TrainerConfig
from slipstream.settings.trainer import LOSS_FUNCTIONS
from slipstream.shared.functions import load_function, load_object

if TYPE_CHECKING:
    from slipstream_trainer.batch.work import Work

MAX_COMPLETION_TOKENS = 512
"""dr_grpo's constant: TRL's default ``max_completion_length``. A factor on the loss, nothing else."""
CISPO_HIGH = 4.0
"""cispo's ε_high where none is set: ratios up to 5, as in ScaleRL (https://arxiv.org/abs/2510.13786)."""


@dataclass(frozen=True, slots=True)
class TrlLoss:
    """One of TRL's losses, whose ``compute_loss`` the trainer calls."""

    type: str
    divisor: Literal["batch", "part", "length", "episode"]
    """By what TRL divides the sum of a part's terms: the batch's tokens, the part's, ``MAX_COMPLETION_TOKENS``, or
    each episode's."""
    level: Literal["token", "sequence"] = "token"

    @property
    def whole(self) -> bool:
        """It needs an episode's tokens together."""
        return self.divisor == "episode"

    def part_factor(self, part_tokens: int, tokens: int, units: int) -> float:
        """By what the loss of a part (one row of ``part_tokens``) is multiplied so that the parts' sum is the batch's
        loss. Not for a loss that needs an episode's tokens together.
        """
        if self.divisor == "part":
            return part_tokens / tokens
        return 1 / units if self.divisor == "length" else 1.0


CISPO_LOSS = TrlLoss("cispo", "batch")
GRPO_LOSS = TrlLoss("grpo", "episode")
BNPO_LOSS = TrlLoss("bnpo", "part")
DAPO_LOSS = TrlLoss("dapo", "batch")
DR_GRPO = TrlLoss("dr_grpo", "length")
GSPO_LOSS = TrlLoss("grpo", "episode", "sequence")
SAPO_LOSS = TrlLoss("sapo", "episode")


@dataclass(frozen=True, slots=True)
class LossTokens:
    """What a loss function gets: all trained tokens of a batch, flat. An episode's tokens are neighbours, in the order
    in which the model said them.
    """

    logprobs_T: torch.Tensor
    """Of the policy that learns, in nats. The only one with a gradient."""
    old_logprobs_T: torch.Tensor
    """Of the policy before the batch's first step (π_old)."""
    weights_T: torch.Tensor
    """min(π_old / π_engine, is_max). 0: a guarded token, which pulls at nothing whatever the function makes of it."""
    advantages_T: torch.Tensor
    episode_T: torch.Tensor
    """Which episode a token is of, 0 … episodes - 1 (integers)."""
    entropy_T: torch.Tensor
    """Of the distribution that a token was drawn from, in nats."""
    episodes: int


LossFunction = Callable[[LossTokens, TrainerConfig], torch.Tensor]
"""→ The batch's loss, one number. The trainer adds the KL term β · mean_t r_t · (exp(d) - d - 1), as for cispo."""


def find_loss(t: TrainerConfig) -> TrlLoss | LossFunction:
    """By its name or place. Raises ``ConfigError``."""
    spec = LOSS_FUNCTIONS.get(t.loss, t.loss)
    found = load_object("trainer.loss", spec)
    return found if isinstance(found, TrlLoss) else load_function("trainer.loss", spec)


def epsilon_high(t: TrainerConfig) -> float:
    """The upper clip's ε: a ratio counts up to 1 + ε_high."""
    return t.epsilon_high or (CISPO_HIGH if t.loss == "cispo" else t.epsilon)


def trl_settings(t: TrainerConfig) -> dict[str, Any]:
    """Arguments of ``GRPOConfig`` that make the loss."""
    found, high = find_loss(t), epsilon_high(t)
    loss = found if isinstance(found, TrlLoss) else DAPO_LOSS  # not called
    return {
        "loss_type": loss.type,
        "importance_sampling_level": loss.level,
        "epsilon": t.epsilon,
        "epsilon_high": 1 + high if loss is CISPO_LOSS else high,  # findings/README.md
        "max_completion_length": MAX_COMPLETION_TOKENS,
        "use_bias_correction_kl": True,
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": t.is_max,
    }


def own_loss(
    function: LossFunction, t: TrainerConfig, work: Work, logps_T: torch.Tensor, entropy_T: torch.Tensor
) -> torch.Tensor:
    """A user's loss of all tokens of a batch."""
    guarded, fixed = work.guarded, logps_T.detach()
    reference_T = work.reference_logprobs_T
    if reference_T is not None:
        reference_T = torch.where(work.without_reference(), fixed, reference_T)
    tokens = LossTokens(
        torch.where(guarded, fixed, logps_T),
        torch.where(guarded, fixed, work.trainer_logprobs_T),
        work.importance_ratio_T,
        work.advantage_T,
        work.unit_T,
        entropy_T.detach(),
        work.plan.scored.units,
    )
    return _loss_of(function, t, tokens, reference_T, t.beta * work.reference_weight)


def _loss_of(
    function: LossFunction, t: TrainerConfig, tokens: LossTokens, reference_T: torch.Tensor | None, beta: float
) -> torch.Tensor:
    """A user's loss of the batch, with the KL term. Raises ``ConfigError`` where it gives no number to learn from."""
    loss: object = function(tokens, t)
    if not isinstance(loss, torch.Tensor) or loss.shape != () or not loss.requires_grad:
        shape = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else repr(loss)
        without = " without a gradient" if isinstance(loss, torch.Tensor) and not loss.requires_grad else ""
        raise ConfigError(
            f"trainer.loss = {t.loss!r} returned {shape}{without}: return one number (a tensor of shape ()) that is "
            "computed from logprobs_T"
        )
    if reference_T is None:
        return loss
    d = reference_T - tokens.logprobs_T
    ratio = (tokens.logprobs_T - tokens.old_logprobs_T).exp()
    return loss + beta * (ratio * (d.exp() - d - 1)).mean()


def check_loss(t: TrainerConfig, *, entropy: bool = True) -> None:
    """Try a user's loss on five tokens of two episodes. ``entropy``: whether there are any. Raises ``ConfigError``."""
    loss = find_loss(t)
    if isinstance(loss, TrlLoss):
        return
    old_T = torch.tensor([-0.5, -1.0, -2.0, -0.1, -3.0])
    now_T = (old_T + torch.tensor([0.0, 0.1, -0.1, 0.0, 0.3])).requires_grad_()
    advantages_T, episode_T = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0]), torch.tensor([0, 0, 0, 1, 1])
    entropy_T = torch.full((5,), 1.0 if entropy else math.nan)
    tokens = LossTokens(now_T, old_T, torch.ones(5), advantages_T, episode_T, entropy_T, episodes=2)
    try:
        torch.autograd.backward(_loss_of(loss, t, tokens, None, 0.0))
    except ConfigError:
        raise
    except Exception as e:
        raise ConfigError(f"trainer.loss = {t.loss!r} fails on five tokens: {type(e).__name__}: {e}") from e
    if now_T.grad is None or not now_T.grad.isfinite().all():
        without = "" if entropy else f" (trainer.backend = {t.backend!r} knows no entropies: entropy_T is not a number)"
        raise ConfigError(f"trainer.loss = {t.loss!r} has no finite gradient at logprobs_T{without}")
