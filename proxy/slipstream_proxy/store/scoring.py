"""From reward rows to the one number that trains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from slipstream_proxy.store.values import Rules


class LatestReward(NamedTuple):
    """An episode's latest reward of a name, for itself (``call`` None) or for one of its calls."""

    call: str | None
    name: str
    value: float


def combine(rules: Rules, rows: Iterable[LatestReward]) -> float | None:
    """Σ weight × value over the names of ``rules.weights``.

    A name's value is the episode's own plus, unless credit goes to calls, the sum of its calls'. None while a name is
    missing.
    """
    own: dict[str, float] = {}
    calls: dict[str, float] = defaultdict(float)
    for call, name, value in rows:
        if call is None:
            own[name] = value
        else:
            calls[name] += value
    total = 0.0
    for name, weight in rules.weights.items():
        if name not in own and name not in calls:
            return None
        total += weight * (own.get(name, 0.0) + (calls.get(name, 0.0) if rules.credit == "episode" else 0.0))
    return total


def combine_calls(rules: Rules, rows: Iterable[LatestReward]) -> dict[str, float]:
    """Call → its own weighted reward, where credit goes to calls."""
    found: dict[str, float] = defaultdict(float)
    for call, name, value in rows:
        if rules.credit == "call" and call is not None and name in rules.weights:
            found[call] += rules.weights[name] * value
    return found
