"""Rewards of any scale, as numbers from 0 to 1, and when their scale has changed.

A reward is placed between bounds that come from earlier rewards alone, or from ``gate.reward_range``. What lies outside
is clipped, so one huge reward counts as a good one and no more. Both arms use the same bounds: rewards that have one
distribution keep having one.

A change of scale (0/100 became 0/1, or passes became points) is seen by comparing the newest rewards of the reference
arm, whose adapter is the same as before, with the rewards before them. Other tasks move the shares of known rewards.
Another scale brings rewards that were never seen, or leaves most of the range empty.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pydantic import JsonValue

WINDOW_REWARDS = 1000
"""Rewards that the bounds are taken from."""
LOOK_INTERVAL_REWARDS = 16
"""Rewards between two looks at the bounds, after the first ``LOOK_INTERVAL_REWARDS``."""

COARSE_REWARDS, COARSE_SHARE = 128, 0.25
"""Newest rewards, and the part of the range that they fill at least if it is theirs."""


class RewardScale:
    """Bounds are the window's 1 % and 99 % points, the most extreme reward on either side left out.

    Where these are equal (nearly all rewards are one number), the nearest other reward is a bound, if all others lie on
    one side: rare successes are successes. Else a reward counts as 0 below it, 0.5 at it and 1 above it.
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

    def is_coarse(self) -> bool:
        """Whether the newest rewards lie in a small part of the range: it still holds rewards of before, and a loss
        looks small in it.
        """
        if self.fixed or len(self.ring) < COARSE_REWARDS or self.span <= 0.0:
            return False
        newest = sorted((self.ring[self.next :] + self.ring[: self.next])[-COARSE_REWARDS:])
        return 0.0 < newest[-1 - COARSE_REWARDS // 100] - newest[COARSE_REWARDS // 100] < COARSE_SHARE * self.span

    def see(self, reward: float) -> bool:
        """Remember a reward. → Whether the bounds moved."""
        self.count += 1
        if self.fixed:
            self.outside += not self.low <= reward <= self.high
            return False
        if len(self.ring) < WINDOW_REWARDS:
            self.ring.append(reward)
        else:
            gone = self.ring[self.next]
            del self.ordered[bisect_left(self.ordered, gone)]
            self.ring[self.next] = reward
            self.next = (self.next + 1) % WINDOW_REWARDS
        insort(self.ordered, reward)
        if self.count > LOOK_INTERVAL_REWARDS and self.count % LOOK_INTERVAL_REWARDS and self.high > self.low:
            return False
        n = len(self.ordered)
        cut = 0 if n < 8 else 1 + n // 100
        low, high = self.ordered[cut], self.ordered[n - 1 - cut]
        if low == high and (self.ordered[0] == low or self.ordered[-1] == high):
            low = self.ordered[max(bisect_left(self.ordered, low) - 1, 0)]
            high = self.ordered[min(bisect_right(self.ordered, high), n - 1)]
        moved = low != self.low or high != self.high
        self.low, self.high = low, high
        return moved

    def dump(self) -> dict[str, JsonValue]:
        ring: list[JsonValue] = [*self.ring]
        bounds: dict[str, JsonValue] = {"low": self.low, "high": self.high}
        return {**bounds, "count": self.count, "outside": self.outside, "next": self.next, "ring": ring}

    def load(self, kept: dict[str, JsonValue]) -> None:
        if not self.fixed:
            self.low, self.high = number(kept["low"]), number(kept["high"])
        ring = kept["ring"]
        assert isinstance(ring, list)
        self.count, self.next = int(number(kept["count"])), int(number(kept["next"]))
        self.outside = int(number(kept.get("outside", 0)))
        self.ring = [number(r) for r in ring]
        self.ordered = sorted(self.ring)


def number(value: JsonValue) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"not a number: {value!r}")
    return float(value)


RECENT_REWARDS: Final = (24, 100, 400)
"""Newest rewards of the reference arm that are looked at together: where runs take time, the old scale goes slowly."""
LAG_SHARE: Final = 0.376
"""Rewards are old when this part of their number, and ``RECENT_REWARDS[0]`` more, came after them."""
MAX_OLD_REWARDS: Final = 1000
"""Old rewards, at most."""
LEAST_OLD: Final = 32
MIN_UNKNOWN_SHARE: Final = 0.05
"""Share of the newest rewards that are unknown, below which they may be those of a new task."""
MIN_NEW_REWARDS: Final = 8
"""Newest rewards, none of which is the only reward there was, that make another scale."""
OUTSIDE_SHARE: Final = 0.5
"""Of the old rewards' range: what lies further outside is unlike them."""
SURE_PROBABILITY: Final = 1e-6
DOUBT_PROBABILITIES: Final = (0.05, 0.005, 0.001)
"""Probabilities of so many unknown rewards by chance: another scale, and perhaps one."""
LEAST_BLOCKS: Final = 4
"""Blocks of ``RECENT_REWARDS[0]`` old rewards whose means say how long what moves rewards lasts."""
NARROW_SHARE, MIN_TASKS = 0.2, 12
"""Share of the old rewards between the newest ones below which the range has shrunk, and tasks that must say so."""
NARROW_WIDTH: Final = 0.15
"""Part of the old range that the newest rewards then fill at most."""


class ScaleWatch:
    """Only rewards of the reference arm are shown to it."""

    def __init__(self) -> None:
        self.old: deque[float] = deque()
        self.ordered: list[float] = []
        self.counts: dict[float, int] = {}
        self.single = 0
        """Old rewards that were seen once: so often a new one is unlike all others, on the same scale."""
        self.newest: deque[tuple[float, str]] = deque()
        """(reward, its task) of those that are not old yet."""
        self.unknown: deque[tuple[bool, float]] = deque()
        self.outside: deque[tuple[bool, float]] = deque()
        """Of each of ``newest``: whether it was unlike all old ones, and outside their range, when it came; and how
        probable that was on the old scale.
        """
        self.odd = 0
        """How many flags are set."""
        self.doubt = False
        """Some rewards of the reference arm are unlike all before: it is not settled yet what that means."""

    def see(self, reward: float, task: str) -> bool:
        """→ Whether the scale is another one from now on."""
        self._note(reward, task)
        while len(self.newest) > RECENT_REWARDS[0] + LAG_SHARE * len(self.old):
            self._age()
        return len(self.old) >= LEAST_OLD and self._changed()

    def _lasting(self) -> float:
        """The part of the old rewards' variance that is still there ``RECENT_REWARDS[0]`` rewards later, 0 to 1: a
        day's curve, or what one task has from the next. Few rewards in a row say little where it is high.
        """
        old, k = list(self.old), RECENT_REWARDS[0]
        n = len(old)
        mean = sum(old) / n
        variance = sum((r - mean) ** 2 for r in old) / n
        if variance <= 0.0:
            return 0.0
        near = sum((a - mean) * (b - mean) for a, b in pairwise(old)) / n / variance
        lasting = (near - 2.0 / math.sqrt(n)) * (1.0 if n < LEAST_BLOCKS * k else 0.5)
        if n >= LEAST_BLOCKS * k:
            means = [sum(old[i : i + k]) / k for i in range(n % k, n, k)]
            chance = (1.0 + 2.0 * math.sqrt(2.0 / len(means))) / k
            lasting = max(lasting, sum((m - mean) ** 2 for m in means) / len(means) / variance - chance)
        return min(max(lasting, 0.0), 1.0)

    def begin(self, rewards: list[float]) -> None:
        """Only these are known."""
        self.old, self.ordered, self.counts, self.single = deque(), [], {}, 0
        self.newest, self.unknown, self.outside = deque(), deque(), deque()
        self.odd, self.doubt = 0, False
        for reward in rewards:
            self._remember(reward)

    def _note(self, reward: float, task: str) -> None:
        self.newest.append((reward, task))
        n = len(self.old)
        known = n < LEAST_OLD or len(self.counts) == 1
        few = n < LEAST_BLOCKS * RECENT_REWARDS[0]  # whose range says little of the next ones
        slack = 0.0 if known else OUTSIDE_SHARE * (1.0 + few) * (self.ordered[-1] - self.ordered[0])
        within = known or self.ordered[0] - slack <= reward <= self.ordered[-1] + slack
        new = (self.single + 1.0) / (n + 1.0)
        self.unknown.append((new < 0.5 and not known and reward not in self.counts, new))
        self.outside.append((not within, min(3.0 / (n + 1.0), 1.0)))
        self.odd += self.unknown[-1][0] + self.outside[-1][0]

    def _changed(self) -> bool:
        n, few = len(self.old), min(RECENT_REWARDS[0], len(self.newest))
        if len(self.counts) == 1:
            self.doubt = not any(reward in self.counts for reward, _ in islice(reversed(self.newest), few))
            return self.doubt and few >= MIN_NEW_REWARDS
        self.doubt = False
        lasting = -1.0
        for window, doubt in zip(RECENT_REWARDS, DOUBT_PROBABILITIES, strict=True) if self.odd else ():
            k = min(window, len(self.newest))
            chance = min(_chance(self.unknown, k), _chance(self.outside, k))
            if chance < doubt:
                lasting = self._lasting() if lasting < 0.0 else lasting
                chance = min(_chance(flags, k, lasting) for flags in (self.unknown, self.outside))
            self.doubt = self.doubt or chance < doubt
            if chance < SURE_PROBABILITY:
                return True
        if few < RECENT_REWARDS[0] or 4 * len(self.counts) < n:
            return False
        seen = list(islice(reversed(self.newest), few))
        if len({task or f"#{i}" for i, (_, task) in enumerate(seen)}) < MIN_TASKS:
            return False
        low, high = min(r for r, _ in seen), max(r for r, _ in seen)
        share = (bisect_right(self.ordered, high) - bisect_left(self.ordered, low)) / n
        width = self.ordered[n - 1 - n // 100] - self.ordered[n // 100]
        if n < LEAST_BLOCKS * few or share >= NARROW_SHARE or high - low >= NARROW_WIDTH * width:
            return False
        alone = few / (1.0 + (few - 1.0) * self._lasting())
        return alone * math.pow(max(share, 1.0 / n), alone - 1.0) < SURE_PROBABILITY

    def _age(self) -> None:
        reward, _ = self.newest.popleft()
        self.odd -= self.unknown.popleft()[0] + self.outside.popleft()[0]
        if len(self.old) >= MAX_OLD_REWARDS:
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
        """None, of a program that did not look: it begins now. A reward without a task was another arm's."""
        if not isinstance(kept, dict):
            return
        old, newest = kept["old"], kept["newest"]
        if not isinstance(old, list) or not isinstance(newest, list):
            raise TypeError("rewards of another shape")
        self.begin([float(r) for r in old if isinstance(r, int | float)])
        for pair in newest:
            if not isinstance(pair, list) or not isinstance(pair[0], int | float):
                raise TypeError("rewards of another shape")
            if isinstance(pair[1], str):
                self._note(float(pair[0]), pair[1])


def _chance(flags: deque[tuple[bool, float]], k: int, lasting: float = 0.0) -> float:
    """Of so many flags among the last ``k`` on the old scale; 1.0 where they are few. ``lasting``: the correlation of
    rewards within so many. They count as fewer then (Kish's design effect).
    """
    found, expected = 0, 0.0
    for flag, probability in islice(reversed(flags), k):
        found += flag
        expected += probability
    if found < MIN_UNKNOWN_SHARE * k:
        return 1.0
    alone = max(round(k / (1.0 + (k - 1.0) * lasting)), 1)
    return _tail(alone, round(found * alone / k), expected / k)


def _tail(n: int, least: int, p: float) -> float:
    """Probability of at least so many of ``n``; 1.0 where these are no more than is to be expected."""
    if least <= n * p:
        return 1.0
    log = math.lgamma(n + 1) - math.lgamma(least + 1) - math.lgamma(n - least + 1)
    term = total = math.exp(log + least * math.log(p) + (n - least) * math.log1p(-p))
    for i in range(least, n):
        term *= (n - i) / (i + 1) * p / (1.0 - p)
        total += term
        if term < 1e-12 * total:
            break
    return min(total, 1.0)
