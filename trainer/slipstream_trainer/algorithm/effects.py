"""Settings that were set and change nothing, with the reason: reported at the start and in each event."""

from __future__ import annotations

from slipstream.settings import TrainerConfig

LOSS_ONLY = (
    "loss",
    "epsilon",
    "epsilon_high",
    "beta",
    "advantage",
    "inner_steps",
    "target_kl",
    "is_max",
    "max_ratio",
    "max_engine_kl",
)
"""What imitation does not look at."""


def without_effect(t: TrainerConfig) -> dict[str, str]:
    """Setting → why it changes nothing. Only settings that are not the defaults: a process that gets all of them from
    another cannot tell which ones somebody set.
    """
    found: dict[str, str] = {}
    if t.algorithm == "sft":
        found |= dict.fromkeys(
            (n for n in LOSS_ONLY if n != "inner_steps"), 'algorithm = "sft" imitates: it has no policy loss'
        )
    elif t.loss == "sapo":
        found |= dict.fromkeys(("epsilon", "epsilon_high"), 'loss = "sapo" does not clip')
    elif t.inner_steps == 1:
        why = "inner_steps = 1: the ratio is taken to the policy itself, so it is always 1 and nothing is clipped"
        found |= dict.fromkeys(("epsilon", "epsilon_high"), why)
    elif t.loss == "cispo":
        found["epsilon"] = 'loss = "cispo" clips ratios above only (epsilon_high)'
    if t.learning_rate != "auto":
        found["target_kl"] = "learning_rate is a number: only an automatic rate is steered"
    defaults = type(t).model_fields
    return {n: why for n, why in found.items() if getattr(t, n) != defaults[n].get_default(call_default_factory=True)}
