"""How far rewards lie apart, and when their scale has changed.

Rewards of any scale, as numbers from 0 to 1.

A reward is placed between bounds that come from earlier rewards alone, or from ``gate.reward_range``. What lies outside
is clipped, so one huge reward counts as a good one and no more. Both arms use the same bounds: rewards that have one
distribution keep having one.

Notices that rewards are given on another scale than before: 0/100 became 0/1, or passes became points.

It compares the newest rewards of the reference arm, whose adapter is the same as before, with the rewards before them.
Other tasks move the shares of known rewards. Another scale brings rewards that were never seen, or leaves most of the
range empty.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import TYPE_CHECKING, Final

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


RESCALE_WINDOW: Final = 24
"""Newest rewards of the reference arm."""
OLD: Final = 1000
"""Rewards before these, at most."""
LEAST_OLD: Final = 32
ALONE: Final = 8
"""Newest rewards, none of which is the only reward there was, that make another scale."""
SURE, DOUBT = 1e-6, 0.05
"""Probabilities of so many unknown rewards by chance: another scale, and perhaps one."""
NARROW, TASKS = 0.2, 12
"""Share of the old rewards between the newest ones below which the range has shrunk, and tasks that must say so."""
PENDING: Final = 4000


class ScaleWatch:
    def __init__(self) -> None:
        self.old: deque[float] = deque()
        self.ordered: list[float] = []
        self.counts: dict[float, int] = {}
        self.single = 0
        """Old rewards that were seen once: so often a new one is unlike all others, on the same scale."""
        self.newest: deque[tuple[float, str | None]] = deque()
        """(reward, its task in the reference arm), from the oldest of the window on. None: of another arm."""
        self.window = 0
        self.doubt = False
        """Some rewards of the reference arm are unlike all before: it is not settled yet what that means."""

    def see(self, reward: float, task: str | None) -> list[float] | None:
        """``task``: of a run of the reference arm; None: of another arm. → The rewards on the new scale, where it is
        another one from now on.
        """
        self.newest.append((reward, task))
        if task is not None:
            self.window += 1
        while self.window > RESCALE_WINDOW or len(self.newest) > PENDING:
            self._age()
        if task is None or len(self.old) < LEAST_OLD:
            return None
        first = self._changed()
        if first is None:
            return None
        found = [r for r, _ in list(self.newest)[first:]]
        self.begin(found)
        return found

    def begin(self, rewards: list[float]) -> None:
        """Only these are known."""
        self.old, self.ordered, self.counts, self.single = deque(), [], {}, 0
        self.newest, self.window, self.doubt = deque(), 0, False
        for reward in rewards:
            self._remember(reward)

    def _changed(self) -> int | None:
        """→ Where the new scale begins in ``newest``; None: it is the old one, or that is not sure."""
        seen = [(i, r, t) for i, (r, t) in enumerate(self.newest) if t is not None]
        n, k = len(self.old), len(seen)
        unknown = [i for i, r, _ in seen if r not in self.counts]
        if len(self.counts) == 1:
            self.doubt = len(unknown) == k
            return unknown[0] if self.doubt and k >= ALONE else None
        outside = [i for i, r, _ in seen if not self.ordered[0] <= r <= self.ordered[-1]]
        chance = min(
            _tail(k, len(unknown), (self.single + 1.0) / (n + 1.0)), _tail(k, len(outside), min(3.0 / (n + 1.0), 1.0))
        )
        self.doubt = chance < DOUBT
        if chance < SURE:
            return (unknown or outside)[0]
        if k < RESCALE_WINDOW or 4 * len(self.counts) < n or len({t or f"#{i}" for i, _, t in seen}) < TASKS:
            return None
        low, high = min(r for _, r, _ in seen), max(r for _, r, _ in seen)
        between = bisect_right(self.ordered, high) - bisect_left(self.ordered, low)
        return 0 if between < NARROW * n else None

    def _age(self) -> None:
        reward, task = self.newest.popleft()
        if task is not None:
            self.window -= 1
        if len(self.old) >= OLD:
            self._forget(self.old.popleft())
        self._remember(reward)

    def _remember(self, reward: float) -> None:
        self.old.append(reward)
        insort(self.ordered, reward)
        count = self.counts.get(reward, 0) + 1
        self.counts[reward] = count
        self.single += 1 if count == 1 else -1 if count == 2 else 0

    def _forget(self, reward: float) -> None:
        del self.ordered[bisect_left(self.ordered, reward)]
        count = self.counts[reward] - 1
        self.single += -1 if count == 0 else 1 if count == 1 else 0
        if count:
            self.counts[reward] = count
        else:
            del self.counts[reward]

    def dump(self) -> dict[str, JsonValue]:
        newest: list[JsonValue] = [[r, t] for r, t in self.newest]
        return {"old": [*self.old], "newest": newest}

    def load(self, kept: JsonValue) -> None:
        """None, of a program that did not look: it begins now."""
        if not isinstance(kept, dict):
            return
        old, newest = kept["old"], kept["newest"]
        if not isinstance(old, list) or not isinstance(newest, list):
            raise TypeError("rewards of another shape")
        self.begin([float(r) for r in old if isinstance(r, int | float)])
        for pair in newest:
            if not isinstance(pair, list) or not isinstance(pair[0], int | float):
                raise TypeError("rewards of another shape")
            task = pair[1] if isinstance(pair[1], str) else None
            self.newest.append((float(pair[0]), task))
            self.window += task is not None


def _tail(n: int, least: int, p: float) -> float:
    """Probability of at least so many of ``n``."""
    if least <= 0:
        return 1.0
    return min(sum(math.comb(n, i) * p**i * (1.0 - p) ** (n - i) for i in range(least, n + 1)), 1.0)
