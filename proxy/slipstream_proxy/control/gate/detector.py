"""A sequential change detector for "the tested arm is worse than the reference arm", and for the mirrored question.

Take an episode's reward x (0 to 1) as given and bet on the arm it came from. With probabilities a (tested) and 1 - a
(reference) at its assignment, a guess p0 of the reference's mean and a lower guess p1 of the tested arm's, one bet
multiplies its wealth by

    x p / m + (1 - x) (1 - p) / (1 - m),   m = a p1 + (1 - a) p0,   p = p1 for a tested episode, p0 for a reference one.

Its mean over the coin that chose the arm is 1 for every x, so wealth is a test martingale when the arms do not matter,
whatever the rewards look like. It is linear and falling in x for a tested episode, so wealth is a supermartingale
whenever the tested arm's mean is not lower. Wealth is put in again at every start (a version arrives, the control
moves): the sum over starts is an e-detector (Shin, Ramdas, Rinaldo 2023, arXiv 2203.03532), and the expected sum never
exceeds what was put in. Guesses p1 are a mixture: odds of p0 times each of ``BET_SIZES``.

The same bets against shifted questions, "tested - reference is at least d", give the confidence sequence that people
see: at d = 0 it is the verdict's own wealth, so the two cannot contradict each other.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pydantic import JsonValue

BET_SIZES = [math.exp(-0.2), math.exp(-0.4), math.exp(-0.9), math.exp(-2.2), math.exp(-6.0)]
BET_WEIGHTS = [2 / 7, 2 / 7, 1 / 7, 1 / 7, 1 / 7]
TESTED_SHIFTS = [0.0, -0.6, -0.3, -0.15, -0.07, -0.03, 0.03, 0.07, 0.15, 0.3, 0.6]
"""Differences that are tested; the first one decides."""
EDGE_DISTANCE: Final = 0.02
"""Guesses keep this distance from 0 and 1, where a single surprise would end a bet."""
MAX_EVIDENCE: Final = 1e30
LEAST_EPISODES: Final = 8
"""Before these the running z says nothing."""


class BettingDetector:
    """``sign`` 1: the tested arm is worse. -1: it is better. ``shifts`` False leaves the shifted questions out.
    ``margin``: by more than that, in the scale's units.
    """

    def __init__(self, sign: int, lump: float, rate: float, *, shifts: bool = True, margin: float = 0.0) -> None:
        self.sign, self.lump, self.rate, self.margin = sign, lump, rate, margin
        self.shifts = TESTED_SHIFTS if shifts else TESTED_SHIFTS[:1]
        self.wealths: list[float] = [0.0] * (len(self.shifts) * len(BET_SIZES))
        self.credit = lump
        self.put = 0.0
        """Wealth put in so far, all starts together."""
        self.wealth = 0.0
        self.n_tested = self.n_reference = 0
        self.sum_tested = self.sum_reference = 0.0
        self.score = self.square = 0.0
        self.start()

    def start(self) -> None:
        """Put in what credit there is: from here the tested arm may be another one."""
        for i in range(len(self.wealths)):
            self.wealths[i] += self.credit * BET_WEIGHTS[i % len(BET_SIZES)]
        self.put += self.credit
        self.wealth += self.credit
        self.credit = 0.0

    def reset(self, *, fresh: bool = False) -> None:
        """Forget the evidence: the question is another one. ``fresh``: with all the credit that there was at first."""
        if fresh:
            self.credit = self.lump
        self.wealths = [0.0] * len(self.wealths)
        self.put = self.wealth = 0.0
        self.n_tested = self.n_reference = 0
        self.sum_tested = self.sum_reference = self.score = self.square = 0.0
        self.start()

    def see(self, x: float, expected: float, tested: bool, share: float) -> None:
        """``expected``: the baseline for this task. ``share``: the tested arm's probability among the two."""
        self.credit = min(self.credit + self.rate, self.lump)
        raw = x - expected
        if tested:
            self.n_tested += 1
            self.sum_tested += raw
        else:
            self.n_reference += 1
            self.sum_reference += raw
        score = raw / share if tested else -raw / (1.0 - share)
        self.score += self.sign * score
        self.square += score * score
        if self.sign < 0:
            x, expected = 1.0 - x, 1.0 - expected
        p0 = min(max(expected, EDGE_DISTANCE), 1.0 - EDGE_DISTANCE)
        odds = p0 / (1.0 - p0)
        bets = BET_SIZES
        total = 0.0
        for i in range(len(bets)):
            tilted = odds * bets[i]
            p1 = tilted / (1.0 + tilted)
            mean = share * p1 + (1.0 - share) * p0
            p = p1 if tested else p0
            factor = x * p / mean + (1.0 - x) * (1.0 - p) / (1.0 - mean)
            slope = share * ((1.0 - p1) / (1.0 - mean) - p1 / mean)
            kept = min(self.wealths[i] * factor / (1.0 + slope * self.margin), MAX_EVIDENCE)
            self.wealths[i] = kept
            total += kept
            if len(self.shifts) > 1:
                self._shifted(i, factor, slope)
        self.wealth = total

    def _shifted(self, bet: int, factor: float, slope: float) -> None:
        """The same bet against "at least ``d`` better": never negative, mean at most 1 where that is true."""
        for k in range(1, len(self.shifts)):
            d = self.shifts[k]
            here = factor + slope * d if d > 0.0 else factor / (1.0 - slope * d)
            at = k * len(BET_SIZES) + bet
            self.wealths[at] = min(self.wealths[at] * here, MAX_EVIDENCE)

    def growth(self) -> float:
        """Wealth for each unit put in: 1 without evidence."""
        return self.wealth / self.put if self.put > 0.0 else 1.0

    def z(self) -> float:
        """The running score in standard errors; negative where the detector's claim looks true."""
        n = self.n_tested + self.n_reference
        return self.score / math.sqrt(self.square) if n >= LEAST_EPISODES and self.square > 0.0 else 0.0

    def difference(self) -> float | None:
        """Mean of tested minus reference, each against the baseline, in the scale's units. None: an arm is empty."""
        if not self.n_tested or not self.n_reference:
            return None
        return self.sum_tested / self.n_tested - self.sum_reference / self.n_reference

    def limit(self, alpha: float, other: float = 0.0) -> float:
        """The confidence sequence's bound on this side: ``sign`` times the least difference that is refuted, at most 1
        in size.

        ``other``: wealth of a second detector that counts towards the same verdict. This one has the larger half of a
        verdict, so it never needs less than that.
        """
        need = math.log(max(1.0 / alpha - other, 0.5 / alpha))
        before, below = -1.0, -math.inf
        for d, k in sorted(zip(self.shifts, range(len(self.shifts)), strict=True)):
            wealth = sum(self.wealths[k * len(BET_SIZES) : (k + 1) * len(BET_SIZES)])
            now = math.log(wealth) if wealth > 0.0 else -700.0
            if now >= need:
                part = (need - below) / (now - below) if below > -math.inf else 1.0
                return self.sign * (before + part * (d - before))
            before, below = d, now
        return float(self.sign)

    def lower_to(self, kept: JsonValue) -> None:
        """As it was at an earlier point (``dump``), with no more wealth than now: what came since was about a version
        that is gone.
        """
        credit, put, wealths = self.credit, self.put, self.wealths
        self.load(kept)
        self.credit, self.put = credit, min(self.put, put)
        self.wealths = [min(now, before) for now, before in zip(wealths, self.wealths, strict=True)]
        self.wealth = sum(self.wealths[: len(BET_SIZES)])

    def dump(self) -> list[JsonValue]:
        head = [self.credit, self.put, self.n_tested, self.n_reference, self.sum_tested, self.sum_reference]
        return [*head, self.score, self.square, *self.wealths]

    def load(self, kept: JsonValue) -> None:
        if not isinstance(kept, list) or len(kept) != 8 + len(self.wealths):
            raise TypeError("evidence of another shape")
        numbers = [float(x) for x in kept if isinstance(x, int | float)]
        if len(numbers) != len(kept):
            raise TypeError("evidence that is not numbers")
        self.credit, self.put = numbers[0], numbers[1]
        self.n_tested, self.n_reference = int(numbers[2]), int(numbers[3])
        self.sum_tested, self.sum_reference, self.score, self.square = numbers[4:8]
        self.wealths = numbers[8:]
        self.wealth = sum(self.wealths[: len(BET_SIZES)])
