"""What keeps a step from wrecking the policy: bounds before it, and bounds after it."""

from __future__ import annotations

import math

import torch

from slipstream.settings import TrainerConfig

GRADIENT_NORM_LIMIT = 1000.0
"""A batch whose gradient is longer is not stepped on: it is a thousand times what clipping leaves."""
MAX_TOKEN_RATIO = 100.0
"""Cap of one token's ratio in the mean, so that a single token does not decide."""


def mean_ratio(log_ratio_T: torch.Tensor) -> float:
    """Mean of π_old / π_engine over tokens."""
    return float(log_ratio_T.double().exp().clamp(max=MAX_TOKEN_RATIO).mean()) if len(log_ratio_T) else 1.0


def engine_kl(log_ratio_T: torch.Tensor) -> float:
    """KL(π_engine ‖ π_old) a token, by ``k3`` on tokens that the engine sampled. One token counts ≤
    ``MAX_TOKEN_RATIO``.
    """
    if not len(log_ratio_T):
        return 0.0
    d = log_ratio_T.double()
    return float((d.exp() - d - 1).clamp(max=MAX_TOKEN_RATIO).mean())


def k3(trainer_logprobs_T: torch.Tensor, new_T: torch.Tensor) -> torch.Tensor:
    """KL(old ‖ new) a token, from samples of old: exp(d) - d - 1 ≥ 0, d = new - old (joschu.net, kl-approx)."""
    d = (new_T - trainer_logprobs_T).double()
    return d.exp() - d - 1


def before_step(
    t: TrainerConfig, *, loss: float, ratio: float, grad_norm: float | None, kl: float = 0.0, guarded: float = 0.0
) -> str | None:
    """Why the batch must not be stepped on, or None. ``ratio`` and ``kl`` are of what counts, ``guarded`` is the share
    of tokens that do not: their calls' own ratios are out of bounds.
    """
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    if grad_norm is not None and not math.isfinite(grad_norm):
        return f"the gradient's norm is {grad_norm}"
    if guarded > 0.5:
        bounds = f"1/{t.max_ratio:g} … {t.max_ratio:g}"
        return f"{guarded:.0%} of the tokens are of calls whose mean π_old / π_engine lies outside {bounds}"
    if not 1 / t.max_ratio <= ratio <= t.max_ratio:
        return f"mean π_old / π_engine {ratio:.3g} lies outside 1/{t.max_ratio:g} … {t.max_ratio:g}"
    if not kl <= t.max_engine_kl:
        return f"KL of the engine's to the trainer's policy {kl:.3g} is above {t.max_engine_kl:g}"
    return _steep(grad_norm)


def _steep(grad_norm: float | None) -> str | None:
    if grad_norm is None or grad_norm <= GRADIENT_NORM_LIMIT:
        return None
    return f"the gradient's norm {grad_norm:.3g} is above {GRADIENT_NORM_LIMIT:g}"


def after_step(t: TrainerConfig, *, kl: float, entropy: float, grad_norm: float | None = None) -> str | None:
    """Why the step must be undone, or None. ``grad_norm``: if it was known only then."""
    if why := _steep(grad_norm):
        return why
    if not math.isfinite(kl) or kl > t.max_kl:
        return f"KL to the adapter before {kl:.3g} is above {t.max_kl:g}"
    if not math.isfinite(entropy):
        return f"the entropy is {entropy}"
    return None
