"""Rewards of any scale, as numbers from 0 to 1.

A reward is placed between bounds that come from earlier rewards alone, or from ``gate.reward_range``. What lies outside
is clipped, so one huge reward counts as a good one and no more. Both arms use the same bounds: rewards that have one
distribution keep having one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import JsonValue

WINDOW = 1000
"""Rewards that the bounds are taken from."""
EVERY = 16
"""Rewards between two looks at the bounds, after the first ``EVERY``."""


class RewardScale:
    """Bounds are the window's 1 % and 99 % points, the most extreme reward on either side left out.

    Where these are equal (nearly all rewards are one number), a reward counts as 0 below it, 0.5 at it and 1 above it.
    """

    def __init__(self, low: float | None = None, high: float | None = None) -> None:
        self.fixed = low is not None and high is not None
        self.low = low if low is not None else 0.0
        self.high = high if high is not None else 0.0
        self.count = 0
        self.outside = 0
        """Rewards outside a declared range."""
        self.ring: list[float] = []
        self.next = 0
        self.ordered: list[float] = []

    @property
    def span(self) -> float:
        """Reward units between 0 and 1; 0.0 where nearly all rewards are one number."""
        return self.high - self.low

    def unit(self, reward: float) -> float:
        if self.high <= self.low:
            return 0.5 if reward == self.low or not self.count else (0.0 if reward < self.low else 1.0)
        return min(max((reward - self.low) / (self.high - self.low), 0.0), 1.0)

    def reward(self, unit: float) -> float:
        """The inverse of ``unit`` for what was not clipped."""
        return self.low + unit * (self.high - self.low)

    def see(self, reward: float) -> bool:
        """Remember a reward. → Whether the bounds moved."""
        self.count += 1
        if self.fixed:
            self.outside += not self.low <= reward <= self.high
            return False
        if len(self.ring) < WINDOW:
            self.ring.append(reward)
        else:
            gone = self.ring[self.next]
            del self.ordered[bisect_left(self.ordered, gone)]
            self.ring[self.next] = reward
            self.next = (self.next + 1) % WINDOW
        insort(self.ordered, reward)
        if self.count > EVERY and self.count % EVERY and self.high > self.low:
            return False
        n = len(self.ordered)
        cut = 0 if n < 8 else 1 + n // 100
        low, high = self.ordered[cut], self.ordered[n - 1 - cut]
        moved = low != self.low or high != self.high
        self.low, self.high = low, high
        return moved

    def dump(self) -> dict[str, JsonValue]:
        ring: list[JsonValue] = [*self.ring]
        bounds: dict[str, JsonValue] = {"low": self.low, "high": self.high}
        return {**bounds, "count": self.count, "outside": self.outside, "next": self.next, "ring": ring}

    def load(self, kept: dict[str, JsonValue]) -> None:
        if not self.fixed:
            self.low, self.high = _number(kept["low"]), _number(kept["high"])
        ring = kept["ring"]
        assert isinstance(ring, list)
        self.count, self.next = int(_number(kept["count"])), int(_number(kept["next"]))
        self.outside = int(_number(kept.get("outside", 0)))
        self.ring = [_number(r) for r in ring]
        self.ordered = sorted(self.ring)


def _number(value: JsonValue) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"not a number: {value!r}")
    return float(value)
