"""Rewards become advantages: how much better than its group an episode was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from slipstream_trainer.rows import Sample

Kind = Literal["std", "mean", "leave_one_out"]
EPSILON = 1e-4
"""TRL's: added to the standard deviation."""
SAME = 1e-8
"""Rewards that differ by less are the same."""
BATCH = "batch"
"""The one baseline of all episodes that have no group of their own."""


def centered(rewards_E: NDArray[np.float64], kind: Kind) -> NDArray[np.float64]:
    """Advantages of one group's rewards.

    ``std``: (r - mean) / (std + 1e-4), GRPO, https://arxiv.org/abs/2402.03300, with the sample's standard deviation
    as TRL has it. ``mean``: r - mean, Dr. GRPO, https://arxiv.org/abs/2503.20783. ``leave_one_out``: r - mean of
    the others, RLOO, https://arxiv.org/abs/2402.14740.
    """
    n = len(rewards_E)
    if n < 2:
        return np.zeros(n)
    away = rewards_E - rewards_E.mean()
    if kind == "std":
        return np.asarray(away / (rewards_E.std(ddof=1) + EPSILON))
    return np.asarray(away * n / (n - 1)) if kind == "leave_one_out" else away


@dataclass(slots=True)
class Advantages:
    """What became of a batch's groups. ``dropped`` groups had nothing to compare: all episodes alike, or one alone."""

    episodes: dict[str, float] = field(default_factory=dict)
    """``Sample.run`` → advantage."""
    groups: int = 0
    dropped: int = 0
    reward_mean: float = 0.0
    reward_std: float = 0.0
    """Mean and spread count kept and dropped runs."""


def assign(samples: Sequence[Sample], kind: Kind) -> Advantages:
    """Set each sample's ``advantage``; samples of dropped groups become untrainable (``zero_variance``).

    Groups of kind ``task`` are their own baseline. Ungrouped traffic (``like``, ``window``) shares one over the
    batch. A sample whose call has its own reward (``call_reward``) is compared with the rewards of its group's
    episodes by that.

    What cannot be trained on (stale, forced, too long) is in the baseline all the same: its reward is as good as
    the others'.
    """
    groups: dict[str, list[Sample]] = {}
    for s in samples:
        if np.isfinite(s.reward):
            groups.setdefault(s.group if s.kind == "task" else BATCH, []).append(s)
    out = Advantages(groups=len(groups))
    everything: dict[str, float] = {}
    for members in groups.values():
        rewards = {s.run: float(s.reward) for s in members}
        everything |= rewards
        values = np.array(list(rewards.values()))
        by_call = any(s.call_reward is not None for s in members)
        if (len(values) < 2 or np.ptp(values) < SAME) and not by_call:
            out.dropped += 1
            for s in members:
                _drop(s)
            out.episodes |= dict.fromkeys(rewards, 0.0)
            continue
        advantages = dict(zip(rewards, centered(values, kind).tolist(), strict=True))
        out.episodes |= advantages
        for s in members:
            s.advantage = advantages[s.run]
        if by_call:
            _by_call(members, kind)
    if everything:
        found = np.array(list(everything.values()))
        out.reward_mean, out.reward_std = float(found.mean()), float(found.std())
    return out


def _drop(s: Sample) -> None:
    if s.trainable:
        s.trainable, s.reason = False, "zero_variance"


def _by_call(members: Sequence[Sample], kind: Kind) -> None:
    """Each call by its own reward (its episode's where it has none), against all calls of the group."""
    values = np.array([s.reward if s.call_reward is None else s.call_reward for s in members], dtype=np.float64)
    if not np.isfinite(values).all() or len(values) < 2 or np.ptp(values) < SAME:
        for s in members:
            _drop(s)
        return
    for s, advantage in zip(members, centered(values, kind).tolist(), strict=True):
        s.advantage = advantage
