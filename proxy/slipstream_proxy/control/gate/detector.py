"""A sequential change detector for "the tested arm is worse than the reference arm", and for the mirrored question.

**Where all runs have a reward.** Take an episode's reward x (0 to 1) as given and bet on the arm it came from. With
probabilities a (tested) and 1 - a (reference) at its assignment, a guess p0 of the reference's mean and a lower guess
p1 of the tested arm's, one bet multiplies its wealth by

    x p / m + (1 - x) (1 - p) / (1 - m),   m = a p1 + (1 - a) p0,   p = p1 for a tested episode, p0 for a reference one.

Null hypothesis: given the past, the tested arm's mean is not lower than the reference's. It conditions on the past and
on x; the coin that chose the arm is what is left. Over the coin the factor's mean is 1 for every x, so wealth is a test
martingale when the arms do not matter, whatever the rewards look like. It is linear and falling in x for a tested
episode, so wealth is a supermartingale whenever the tested arm's mean is not lower.

**Where some runs have none** (``partial``), a rated run's arm is no such coin: users of one version may rate less
often, and less often on some tasks than on others, and that may change with time. But the arm of a run, rated or not,
still is one. So each bet is split at x = m, where its factor is 1 in either arm. One wealth counts the rated runs below
m: it grows if poor rewards come more often from the tested arm. One counts those above: it grows if good ones come less
often. The smaller of the two counts. Null hypothesis, for every bet, from one start to the next: given the past, a run
of the tested arm gets no more poor rewards (the mean of what it lies below m, 0 where it is unrated or above), or it
gets no fewer good ones. A version that is not worse cannot break both, if its users rate no kind of reward more often
than the reference's, or none less often. Proof: where x < m the factor is above 1 in the tested arm and below 1 in the
reference's, with mean 1 over the coin. Its mean over all runs is 1 + a (1 - p1 / m) / (1 - m) times what the tested
arm's mean of (m - x)+ is above the reference's: at most 1 if that is not more. The same holds above. One of the two is
a supermartingale, and the smaller one lies below it. Neither p0 nor a ratio has to be right. The price is power: only
one kind of reward speaks at a time, and no bet can do better against this null hypothesis, since the nearest world in
it differs in one kind alone. At a start, no wealth stays above ``MAX_APART`` times the other: the next version's users
may err the other way. ``benchmarks.gate.search_null`` looks for worlds that break this.

Wealth is put in again at every start (a version arrives, the control moves): the sum over starts is an e-detector
(Shin, Ramdas, Rinaldo 2023, arXiv 2203.03532), and the expected sum never exceeds what was put in. Guesses p1 are a
mixture: odds of p0 times each of ``BET_SIZES``.

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
MAX_APART: Final = 4.0
"""Times that the wealth on poor rewards, or on good ones, may be the other one at a start."""
MAX_EVIDENCE: Final = 1e30
LEAST_EPISODES: Final = 8
"""Before these the running z says nothing."""
SEEN_ERRORS: Final = 2.0
"""Standard errors between what was seen and a loss that would have been seen with 95 %: 1.65, and more because one
looks again and again.
"""


class BettingDetector:
    """``sign`` 1: the tested arm is worse. -1: it is better. ``shifts`` False leaves the shifted questions out.
    ``margin``: by more than that, in the scale's units.
    """

    def __init__(self, sign: int, lump: float, rate: float, *, shifts: bool = True, margin: float = 0.0) -> None:
        self.sign, self.lump, self.rate, self.margin = sign, lump, rate, margin
        self.shifts = TESTED_SHIFTS if shifts else TESTED_SHIFTS[:1]
        self.wealths: list[float] = [0.0] * (len(self.shifts) * len(BET_SIZES))
        self.above: list[float] = []
        """As ``wealths``, which are of poor rewards then, of good ones. Empty: all runs had a reward so far."""
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
        if self.above:
            for k in range(len(self.shifts)):
                self._bring_near(k)
        for row in (self.wealths, self.above):
            for i in range(len(row)):
                row[i] += self.credit * BET_WEIGHTS[i % len(BET_SIZES)]
        self.put += self.credit
        self.credit = 0.0
        self.wealth = self._least(0)

    def reset(self, *, fresh: bool = False) -> None:
        """Forget the evidence: the question is another one. ``fresh``: with all the credit that there was at first."""
        if fresh:
            self.credit = self.lump
        self.wealths = [0.0] * len(self.wealths)
        self.above = []
        self.put = 0.0
        self._forget_sums()
        self.start()

    def forget(self) -> None:
        """The evidence speaks of other rewards. No wealth comes in, so that no number of such changes adds to the error
        level: what was lost stays lost, and what was won beyond what was put in is given up.
        """
        left = [min(self._least(k), self.put) for k in range(len(self.shifts))]
        bets = len(BET_SIZES)
        self.wealths = [left[i // bets] * BET_WEIGHTS[i % bets] for i in range(len(self.wealths))]
        self.above = []
        self._forget_sums()
        self.start()

    def _forget_sums(self) -> None:
        self.n_tested = self.n_reference = 0
        self.sum_tested = self.sum_reference = self.score = self.square = 0.0

    def see(self, x: float, expected: float, tested: bool, share: float, partial: bool = False) -> None:
        """``expected``: the baseline for this task. ``share``: the tested arm's probability among the two. ``partial``:
        some runs have no such x, and their share may depend on the arm.
        """
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
        if partial and not self.above:
            self.above = list(self.wealths)
        odds, of_reference = p0 / (1.0 - p0), (1.0 - share) * p0
        for i, size in enumerate(BET_SIZES):
            tilted = odds * size
            p1 = tilted / (1.0 + tilted)
            mean = share * p1 + of_reference
            p = p1 if tested else p0
            factor = x * p / mean + (1.0 - x) * (1.0 - p) / (1.0 - mean)
            slope = share * ((1.0 - p1) / (1.0 - mean) - p1 / mean)
            if partial:
                self._multiply(self.wealths, i, factor if x < mean else 1.0, slope, 0.5 * slope)
                self._multiply(self.above, i, factor if x >= mean else 1.0, slope, 0.5 * slope)
                continue
            self._multiply(self.wealths, i, factor, slope, slope)
            if self.above:
                self._multiply(self.above, i, factor, slope, slope)
        self.wealth = self._least(0)

    def _multiply(self, row: list[float], bet: int, factor: float, slope: float, gain: float) -> None:
        """The same bet against each question: at least ``d`` better. Never negative, mean at most 1 where that is true.
        ``slope``: what the factor's mean wins at most for each unit by which the tested mean is lower. ``gain``: what
        it loses at least where it is higher: one of poor and good rewards has half of that.
        """
        wealth = row[bet] * factor / (1.0 + slope * self.margin)
        row[bet] = min(wealth, MAX_EVIDENCE)
        at, apart = bet, len(BET_SIZES)
        for d in self.shifts[1:]:
            at += apart
            wealth = row[at] * (factor + gain * d if d > 0.0 else factor / (1.0 - slope * d))
            # here often in a run, where a call of min costs as much as the rest
            row[at] = MAX_EVIDENCE if wealth > MAX_EVIDENCE else wealth  # noqa: FURB136

    def _least(self, shift: int) -> float:
        """Wealth against a question."""
        first = shift * len(BET_SIZES)
        poor = good = 0.0
        for at in range(first, first + len(BET_SIZES)):
            poor += self.wealths[at]
        if not self.above:
            return poor
        for at in range(first, first + len(BET_SIZES)):
            good += self.above[at]
        return min(poor, good)

    def _bring_near(self, shift: int) -> None:
        most, first = MAX_APART * self._least(shift), shift * len(BET_SIZES)
        for row in (self.wealths, self.above):
            total = sum(row[first : first + len(BET_SIZES)])
            for at in range(first, first + len(BET_SIZES)) if total > most else ():
                row[at] *= most / total

    def growth(self) -> float:
        """Wealth for each unit put in: 1 without evidence."""
        return self.wealth / self.put if self.put > 0.0 else 1.0

    def z(self) -> float:
        """The running score in standard errors; negative where the detector's claim looks true."""
        n = self.n_tested + self.n_reference
        return self.score / math.sqrt(self.square) if n >= LEAST_EPISODES and self.square > 0.0 else 0.0

    def estimate(self, since: JsonValue = None) -> tuple[float, float]:
        """→ (tested minus reference, its standard error), in the scale's units, each run weighted by the probability of
        its arm. ``since``: as it was then (``dump``); None: of all runs. An arm that is empty: (0.0, ``inf``).

        One run of the reference more than there were, as far off as can be, stands in the error: where successes are
        rare, there may be none yet.
        """
        before = [float(x) for x in since[2:8] if isinstance(x, int | float)] if isinstance(since, list) else [0.0] * 6
        tested, reference = self.n_tested - before[0], self.n_reference - before[1]
        if tested <= 0 or reference <= 0:
            return 0.0, math.inf
        n, square = tested + reference, max(self.square - before[5], 0.0)
        return self.sign * (self.score - before[4]) / n, math.hypot(math.sqrt(square) / n, 1.0 / reference)

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
            wealth = self._least(k)
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
        credit, put, poor, good = self.credit, self.put, self.wealths, self.above
        self.load(kept)
        self.credit, self.put = credit, min(self.put, put)
        if good or self.above:
            self.above = [min(pair) for pair in zip(good or poor, self.above or self.wealths, strict=True)]
        self.wealths = [min(pair) for pair in zip(poor, self.wealths, strict=True)]
        self.wealth = self._least(0)

    def dump(self) -> list[JsonValue]:
        head = [self.credit, self.put, self.n_tested, self.n_reference, self.sum_tested, self.sum_reference]
        return [*head, self.score, self.square, *self.wealths, *self.above]

    def load(self, kept: JsonValue) -> None:
        """Of a program that knew no unrated runs, too."""
        n = len(self.wealths)
        if not isinstance(kept, list) or len(kept) not in (8 + n, 8 + 2 * n):
            raise TypeError("evidence of another shape")
        numbers = [float(x) for x in kept if isinstance(x, int | float)]
        if len(numbers) != len(kept):
            raise TypeError("evidence that is not numbers")
        self.credit, self.put = numbers[0], numbers[1]
        self.n_tested, self.n_reference = int(numbers[2]), int(numbers[3])
        self.sum_tested, self.sum_reference, self.score, self.square = numbers[4:8]
        self.wealths, self.above = numbers[8 : 8 + n], numbers[8 + n :]
        self.wealth = self._least(0)
