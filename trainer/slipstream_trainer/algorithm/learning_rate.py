"""How far a step goes: a learning rate from the model's shape, then steered so that each step moves the policy by
about as much as it may.

``trainer.learning_rate = "auto"`` begins at half of 5e-4 · (2000 / hidden size)^0.775 · 32 / α. That is the fit of
Schulman et al., "LoRA Without Regret" (2025, https://thinkingmachines.ai/blog/lora/) for LoRA with the scale
α / rank; there the best rate hardly depends on the rank. With rsLoRA's scale α / √rank, α counts √rank times.
Imitation begins at the whole of it.

After each step the KL from the policy before to the policy after (nats a token, on the batch) is compared with a
target, and the rate follows: KL grows with the square of the rate, so half of that correction, at most × 1.25 up
and × 0.5 down a step, keeps up with noise. After a step with less than a sixteenth of its target the rate doubles.
The target is ``trainer.target_kl``, but at most one nat for a whole episode, and less where the batch holds little
evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream.settings import TrainerConfig

if TYPE_CHECKING:
    from slipstream_trainer.batch.layout import Scored

FIT_RATE, FIT_WIDTH, FIT_POWER, FIT_ALPHA = 5e-4, 2000, 0.775, 32.0
"""Learning rate at a hidden size, its exponent, and the α of the fit."""
START_SHARE = 0.5
"""Share of the fit at which a policy begins: the first batches are small, and steering raises what is too low."""
EPISODE_NATS = 1.0
"""Most KL of a step for a whole episode: where many tokens were sampled, each moves less."""
FULL_STEP_EPISODES = 64
"""Episodes with an advantage (eight groups of eight) that make a full step. From fewer the gradient is noisier: the
rate falls with the square root of their share, as Adam's rate scales with the batch
(https://arxiv.org/abs/2205.10287), and the target with the share. From more, both rise.
"""
MOST_STEPS = 2.0
"""Full steps that one step is at most. A fast agent's batches are larger than 64 episodes: without this they move the
policy less for each run than those of a slow one.
"""
MAX_RISE, MAX_FALL = 1.25, 0.5
"""Largest changes of the rate in a step; a step that is undone divides it by up to four."""
FAR_FACTOR, FAR_RISE = 16.0, 2.0
"""A step that moved the policy by less than its target over FAR_FACTOR was not noise: the rate is too low
for this model by FAR_FACTOR's root or more, and at MAX_RISE a step it would take six steps to mend."""
MAX_RATE_FACTOR, MIN_RATE_FACTOR = 4.0, 1 / 64
"""Bounds of the rate, in units of where it began."""
HALVE_AFTER = 2
"""Undone steps in a row after which a rate that was set by hand halves."""
TOO_FAR = 2.0
"""A step with more than so many times its target KL is shortened to its target."""
TOO_SHORT = 0.7
"""A shortened step with less than this share of its target KL becomes longer again."""
MIN_STEP_SHARE = 0.05
"""Share of its length that a step keeps at least, each time that it is shortened."""
KL_POWER, MAX_KL_POWER = 2.0, 8.0
"""Power of a step's length with which KL grows: what is expected of a small step, and the most that is believed."""
NEAR_ZERO = 0.01
"""Share of its target below which a step's KL counts as near zero."""
STILL_AFTER = 3
"""Steps near zero in a row that are reported with their cause."""


def start_rate(t: TrainerConfig, hidden: int) -> float:
    """The rate that ``t`` sets, or where "auto" begins for a model of that hidden size."""
    if t.learning_rate != "auto":
        return t.learning_rate
    alpha = t.lora_alpha * (math.sqrt(t.lora_rank) if t.rslora else 1.0)
    caution = 1.0 if t.algorithm == "sft" else START_SHARE
    return float(caution * FIT_RATE * (FIT_WIDTH / hidden) ** FIT_POWER * FIT_ALPHA / alpha)


@dataclass(slots=True, frozen=True)
class Reach:
    """How far one step may go. ``target_kl``: nats a token."""

    rate: float
    target_kl: float


def evidence(scored: Scored) -> float:
    """Episodes that teach, over those that make a full step: at most ``MOST_STEPS``."""
    teaches_T = scored.advantage_T != 0
    if scored.hinted_T is not None:
        teaches_T = teaches_T | scored.hinted_T
    return min(MOST_STEPS, len({*scored.unit_T[teaches_T].tolist()}) / FULL_STEP_EPISODES)


@dataclass(slots=True)
class StepPace:
    """The learning rate's state, kept in each checkpoint."""

    scale: float = 1.0
    """The current rate over the first one."""
    undone: int = 0
    """Steps in a row."""
    still: int = 0
    """Steps in a row whose KL was near zero."""

    def reach(self, t: TrainerConfig, hidden: int, scored: Scored, applied: int) -> Reach:
        """For a batch, after ``applied`` steps. A rate that was set by hand does not depend on the batch."""
        share = evidence(scored)
        episode = EPISODE_NATS * scored.units / max(1, scored.tokens)
        warm = min(1.0, (applied + 1) / t.warmup_steps) if t.warmup_steps else 1.0
        rate = start_rate(t, hidden) * self.scale * warm
        if steers(t):
            rate *= math.sqrt(share)
        return Reach(rate, min(t.target_kl * share, episode * min(1.0, share)))

    def resize(self, t: TrainerConfig, reach: Reach, kl: float, share: float = 1.0, full: float = math.inf) -> float:
        """What to multiply a step's length by; 1: it stays, as with a rate set by hand.

        ``kl``: of the step as it is now, which is ``share`` of one that had the KL ``full``. Where KL grew faster than
        with the square of the length, what was cut is too short, and becomes longer again.
        """
        too_short = share < 1 and 0 < kl < TOO_SHORT * reach.target_kl
        if not steers(t) or not (kl > TOO_FAR * reach.target_kl or too_short):
            return 1.0
        if not math.isfinite(kl):
            return MIN_STEP_SHARE
        power = KL_POWER
        if share < 1:
            seen = math.log(full / kl) / -math.log(share) if math.isfinite(full) else MAX_KL_POWER / 2
            power = min(MAX_KL_POWER, max(KL_POWER, seen))
        return min(1 / share, max(MIN_STEP_SHARE, float((reach.target_kl / kl) ** (1 / power))))

    def note(self, t: TrainerConfig, reach: Reach, kl: float, *, undone: bool) -> None:
        """After a step that was taken, or undone."""
        self.undone = self.undone + 1 if undone else 0
        self.still = self.still + 1 if not undone and kl < NEAR_ZERO * reach.target_kl else 0
        if steers(t):
            self._steer(reach, kl, undone=undone)
        elif self.undone >= HALVE_AFTER:
            self.scale, self.undone = self.scale / 2, 0

    def _steer(self, reach: Reach, kl: float, *, undone: bool) -> None:
        off = reach.target_kl / max(kl, 1e-12) if math.isfinite(kl) else 0.0
        most = FAR_RISE if off > FAR_FACTOR else MAX_RISE
        factor = min(MAX_FALL, max(MAX_FALL / 2, off**0.5)) if undone else min(most, max(MAX_FALL, off**0.25))
        self.scale = min(MAX_RATE_FACTOR, max(MIN_RATE_FACTOR, self.scale * factor))

    def cause(self, t: TrainerConfig, hidden: int, reach: Reach, kl: float) -> str | None:
        """Why the policy moves too little or too far although the rate follows it, and what to do."""
        if steers(t) and self.scale <= MIN_RATE_FACTOR and kl > reach.target_kl:
            far = f"the last step moved the policy by {kl:.1e} nats a token, and {reach.target_kl:.1e} is a full step"
            bound = f"the learning rate is at its lower bound, {reach.rate:.1e}"
            return f"{far}: {bound}; raise trainer.min_groups or groups.size, or set trainer.learning_rate below that"
        if self.still < STILL_AFTER:
            return None
        kls = f"KL {kl:.1e} nats a token; {reach.target_kl:.1e} is a full step"
        what = f"the last {self.still} steps hardly changed the policy ({kls})"
        if t.learning_rate != "auto":
            began = start_rate(t.model_copy(update={"learning_rate": "auto"}), hidden)
            low = f"trainer.learning_rate = {t.learning_rate:g} is low for this model"
            return f'{what}: {low}; "auto" begins at {began:.1e}'
        if self.scale >= MAX_RATE_FACTOR:
            bound = f"the learning rate is at its upper bound, {reach.rate:.1e}"
            return f"{what}: {bound}; set trainer.learning_rate above that"
        return f"{what}: the learning rate rises, now {reach.rate:.1e}"


def steers(t: TrainerConfig) -> bool:
    """By measured KL. A rate set by hand is left alone, and so is imitation: another policy may have sampled those."""
    return t.learning_rate == "auto" and t.algorithm == "grpo"
