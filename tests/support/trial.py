"""A gate's trial, played with made-up rewards."""

from __future__ import annotations

import random
from collections.abc import Callable

from slipstream_proxy.assignment import assign
from slipstream_proxy.control.gate.rules import Decision, TrialSettings, outcome_of
from slipstream_proxy.control.gate.shares import arms_of
from slipstream_proxy.control.gate.trial import GateTrial

Reward = Callable[[random.Random, int], float]


def warm(settings: TrialSettings | None = None, reward: float = 1.0, n: int = 40) -> GateTrial:
    trial = GateTrial(settings or TrialSettings())
    for _ in range(n):
        trial.observe(outcome_of(0, "live", "", "", reward))
    return trial


def play(trial: GateTrial, n: int, reward: Reward, seed: int = 0) -> tuple[Decision, int]:
    """Up to ``n`` episodes, assigned by the shipped rule. → (the first verdict, live episodes until it)."""
    coin, live = random.Random(seed), 0
    for i in range(n):
        arms = [(str(v), arm, share) for v, arm, share in arms_of(trial)]
        got = assign(str(trial.live), arms, "k", None, f"{seed}-{i}-{trial.runs.seen}")
        version = int(got.adapter)
        live += got.arm == "live"
        now = trial.tried
        decision = trial.observe(outcome_of(version, got.arm, got.chances, "", reward(coin, version), now))
        if decision is not Decision.UNDECIDED:
            return decision, live
    return Decision.UNDECIDED, live


def success(by_version: dict[int, float]) -> Reward:
    return lambda coin, version: float(coin.random() < by_version[version])
