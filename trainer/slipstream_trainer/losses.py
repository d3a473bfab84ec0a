"""Which of TRL's losses is meant, with which settings, and how a part of a batch is normalised so that parts add up
to the whole.

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

With β, each term gains β · r_t · (exp(d) - d - 1), d = log π_ref - log π_θ (k3 with bias correction,
https://arxiv.org/abs/2512.02556). π_ref is the adapter that training started from (``init_adapter``), else the base
model, as in TRL. Where w_t is zero (a guarded call), this term is zero too: such a token pulls at nothing.
"""

from __future__ import annotations

from typing import Any

from slipstream.settings import TrainerConfig

SEQUENCE = ("grpo", "gspo", "sapo")
"""Losses that need an episode's tokens together."""
LENGTH = 256
"""dr_grpo's constant: TRL's default ``max_completion_length``. A factor on the loss, nothing else."""
CISPO_HIGH = 4.0
"""cispo's ε_high where none is set: ratios up to 5, as in ScaleRL (https://arxiv.org/abs/2510.13786)."""


def epsilon_high(t: TrainerConfig) -> float:
    """The upper clip's ε: a ratio counts up to 1 + ε_high."""
    return t.epsilon_high or (CISPO_HIGH if t.loss == "cispo" else t.epsilon)


def trl_settings(t: TrainerConfig) -> dict[str, Any]:
    """Arguments of ``GRPOConfig`` that make the loss."""
    high = epsilon_high(t)
    return {
        "loss_type": "grpo" if t.loss == "gspo" else t.loss,
        "importance_sampling_level": "sequence" if t.loss == "gspo" else "token",
        "epsilon": t.epsilon,
        "epsilon_high": 1 + high if t.loss == "cispo" else high,  # TRL's cispo clips the ratio at epsilon_high itself
        "max_completion_length": LENGTH,
        "use_bias_correction_kl": True,
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": t.is_max,
    }


def part_factor(loss: str, part_tokens: int, tokens: int, units: int) -> float:
    """By what TRL's loss of a part (one row of ``part_tokens``) is multiplied so that the parts' sum is the batch's
    loss.

    ``cispo`` and ``dapo`` divide by the batch's tokens themselves. Not for the losses in ``SEQUENCE``.
    """
    if loss == "bnpo":
        return part_tokens / tokens
    return 1 / units if loss == "dr_grpo" else 1.0
