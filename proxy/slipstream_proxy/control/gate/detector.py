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
still is one. So all runs bet, with two made-up rewards. One is 1 less what a reward lies below the expected one, as a
part of that: an unrated run has 1. The other is what a reward lies above it: an unrated run has 0. Each has a wealth of
the bet above, with the mean of all runs so far as its guess, and the smaller wealth counts. Null hypothesis, from one
start to the next: given the past, the tested arm's runs get no more of the poor, or no less of the good. A version
whose runs have as few poor rewards, and as many good ones, cannot break both, if its users rate no kind of reward more
often than the reference's, or none less often. For successes that is all there is to "not worse". Of other rewards, an
equal mean with more spread can break both while the expected one lies too low and fewer of its runs are rated.
Proof: each made-up reward is one between 0 and 1 that every run has, so one of the two wealths is a supermartingale.
The smaller one lies below it. No guess and no rate has to be right.

The price is power, and no bets can do better: the nearest world in which only the poor differ, or only the good, is as
far away (in relative entropy) as the arm and that made-up reward depend on each other, which is what such a bet wins
with each run. Where 0.7 becomes 0.6 and half of the runs are rated, that is a third less than for bets on rated runs
alone, which believe that both arms' users rate alike.

From version to version users may err another way, so that the null hypothesis is of either wealth in turn. Had each
start to make both equal, many versions would cost much power. So the larger one may be c times the smaller, c at most
``spare``, which begins at ``MAX_APART``. If at the next start the wealths are a (of the smaller) and b, ``spare``
becomes min(a, b / c) / min(a, b) times what it was. Then ``spare`` times the smaller wealth is at most the old
``spare`` times a, and times b / c: a supermartingale whichever of the two is one. So users who err another way with
each version, however often, win ``MAX_APART`` times what was put in, and those who err one way win nothing. Users who
turn while a version serves break both bets, one after the other: the promise leaves them out.
``benchmarks.gate.search_null`` looks for worlds that break this.

**Where a run that lacks its reward counts as the worst one** (nearly all of the control's were shown to get one), users
may begin to rate fewer, at rates that depend on the arm. So what speaks against a version because its runs lack a
reward counts only as far as later runs of the control get theirs. Let W be the wealth with such runs as the worst, V
with each as what speaks least for the claim, U = min(U e, W) with e a bet on each run of the control (``Deadline``)
that fewer than ``FEW_RATED_SHARE`` of them get one. V and U begin at W, after the first such run, and V / 4 + 3 U / 4
counts. Null hypothesis: up to some moment W's; from there on fewer of the control's runs than that are rated, and those
of the tested arm would have got no lower rewards, whichever are rated. Proof: V and U lie below W up to that moment,
and are supermartingales from there on: V's factors are those of bets on what the rewards would have been, or smaller,
and e has mean at most 1. The moment need not be known. Once U is W, all goes on from what counts.

Wealth is put in again at every start (a version arrives, the control moves): the sum over starts is an e-detector
(Shin, Ramdas, Rinaldo 2023, arXiv 2203.03532), and the expected sum never exceeds what was put in. Guesses p1 are a
mixture: odds of p0 times each of ``BET_SIZES``.

The same bets against shifted questions, "tested - reference is at least d", give the confidence sequence that people
see: at d = 0 it is the verdict's own wealth, so the two cannot contradict each other.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from slipstream.shared.error_budget import TURNING_RATERS

if TYPE_CHECKING:
    from pydantic import JsonValue

BET_SIZES = [math.exp(-0.2), math.exp(-0.4), math.exp(-0.9), math.exp(-2.2), math.exp(-6.0)]
BET_WEIGHTS = [2 / 7, 2 / 7, 1 / 7, 1 / 7, 1 / 7]
TESTED_SHIFTS = [0.0, -0.6, -0.3, -0.15, -0.07, -0.03, 0.03, 0.07, 0.15, 0.3, 0.6]
"""Differences that are tested; the first one decides."""
EDGE_DISTANCE: Final = 0.02
"""Expected rewards keep this distance from 0 and 1, where a single surprise would end a bet."""
LEAST_RATE: Final = 0.002
"""As ``EDGE_DISTANCE``, of the made-up rewards of runs that may be unrated: most runs have the same."""
FIRST_RATE, RATES_MEMORY = 0.2, 500.0
"""A made-up reward's mean before it is known, and runs after which it fades."""
MAX_APART: Final = TURNING_RATERS
"""Times that the wealth on poor rewards, or on good ones, may be the other one at a start, until that was used."""
PART_AS_BEST: Final = 0.25
"""Of the wealth, that goes on with each run that lacks a reward as what speaks least for the claim."""
MAX_EVIDENCE: Final = 1e30
LEAST_EPISODES: Final = 8
"""Before these the running z says nothing."""
SEEN_ERRORS: Final = 2.0
"""Standard errors between what was seen and a loss that would have been seen with 95 %: 1.65, and more because one
looks again and again.
"""


class Missing(NamedTuple):
    """Of a run where nearly all get a reward."""

    here: bool
    """It lacks its reward, and counts as the worst one."""
    borne_out: float
    """Logarithm of all bets so far that the control's runs get theirs (``Deadline``)."""


NONE_MISSING: Final = Missing(here=False, borne_out=0.0)


class SeenRun(NamedTuple):
    """A run as the bets see it, beside one reference: what ``BettingDetector.see`` is told."""

    x: float | None
    expected: float
    tested: bool
    share: float
    partial: bool
    missing: Missing


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
        self.as_best: list[float] = []
        """As ``wealths``, with runs that lack a reward as what speaks least for the claim. Empty: all that lack one are
        shown to speak for it.
        """
        self.later: list[float] = []
        """Wealth against each question that later runs of the control bear out, as in U above."""
        self.borne_out = 0.0
        """Logarithm of all bets on the control's runs when ``later`` was brought up to them."""
        self.of_poor, self.of_good, self.n = FIRST_RATE, FIRST_RATE, 1.0
        """Means of what rewards lie below the expected one, and above it, as parts of the most that they can."""
        self.spare, self.apart = MAX_APART, 1.0
        """Times that one wealth may still be the other at a start; and what the good one's part was at the last."""
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
        self._bring_near()
        for row in (self.wealths, self.above, self.as_best):
            for i in range(len(row)):
                row[i] += self.credit * BET_WEIGHTS[i % len(BET_SIZES)]
        self.later = [wealth + self.credit for wealth in self.later]
        self.put += self.credit
        self.credit = 0.0
        self.apart = self._apart()
        self.wealth = self._shown(0)

    def reset(self, *, fresh: bool = False) -> None:
        """Forget the evidence: the question is another one. ``fresh``: with all the credit that there was at first."""
        if fresh:
            self.credit = self.lump
        self.wealths = [0.0] * len(self.wealths)
        self.above, self.as_best, self.later = [], [], []
        self.spare, self.apart = MAX_APART, 1.0
        self.put = 0.0
        self._forget_sums()
        self.start()

    def forget(self) -> None:
        """The evidence speaks of other rewards. No wealth comes in, so that no number of such changes adds to the error
        level: what was lost stays lost, and what was won beyond what was put in is given up.
        """
        left = [min(self._shown(k), self.put) for k in range(len(self.shifts))]
        bets = len(BET_SIZES)
        self.wealths = [left[i // bets] * BET_WEIGHTS[i % bets] for i in range(len(self.wealths))]
        self.above, self.as_best, self.later, self.apart = [], [], [], 1.0
        self._forget_sums()
        self.start()

    def _forget_sums(self) -> None:
        self.n_tested = self.n_reference = 0
        self.sum_tested = self.sum_reference = self.score = self.square = 0.0

    def see(
        self,
        x: float | None,
        expected: float,
        tested: bool,
        share: float,
        partial: bool = False,
        missing: Missing = NONE_MISSING,
    ) -> None:
        """``x``: its reward in the scale's units. ``expected``: the baseline for this task. ``share``: the tested arm's
        probability among the two. ``partial``: some runs have no x (None), and their share may depend on the arm.
        """
        if x is not None:
            self._count(x - expected, tested, share)
            if self.sign < 0:
                x = 1.0 - x
        p0 = min(max(1.0 - expected if self.sign < 0 else expected, EDGE_DISTANCE), 1.0 - EDGE_DISTANCE)
        if partial:
            self._keep_shown()
            self.above = self.above or list(self.wealths)
            poor = max(p0 - x, 0.0) / p0 if x is not None else 0.0
            good = max(x - p0, 0.0) / (1.0 - p0) if x is not None else 0.0
            rated, of_poor, of_good = x is not None, self.of_poor, self.of_good
            self._bet(self.wealths, 1.0 - poor, 1.0 - of_poor, tested, share, rated)
            self._bet(self.above, good, of_good, tested, share, rated)
            self.n = min(self.n + 1.0, RATES_MEMORY)
            self.of_poor += (poor - of_poor) / self.n
            self.of_good += (good - of_good) / self.n
        else:
            self._see_all(x or 0.0, p0, tested, share, missing)
        self.wealth = self._shown(0)

    def _see_all(self, x: float, p0: float, tested: bool, share: float, missing: Missing) -> None:
        """As ``see``, where all runs get a reward, or count as the worst. ``x`` and ``p0``: the larger, the less a
        tested run speaks for the claim.
        """
        first = missing.here and not self.as_best
        if first:
            self.as_best = [x for k in range(len(self.shifts)) for x in self._least_row(k)]
        for row in (self.wealths, self.above) if self.above else (self.wealths,):
            self._bet(row, x, p0, tested, share)
        if not self.as_best:
            return
        self._bet(self.as_best, float(tested) if missing.here else x, p0, tested, share)
        if first:
            self.later = [self._as_best(k) for k in range(len(self.shifts))]
        else:
            more = math.exp(min(missing.borne_out - self.borne_out, 50.0))
            self.later = [min(wealth * more, self._least(k)) for k, wealth in enumerate(self.later)]
        self.borne_out = missing.borne_out
        if self.later[0] >= self._least(0):
            self._keep_shown()

    def _keep_shown(self) -> None:
        """Go on from what counts."""
        if not self.as_best:
            return
        self._bring_near()
        bets = len(BET_SIZES)
        for k in range(len(self.shifts)):
            shown = self._shown(k)
            for row, total in zip((self.wealths, self.above), self._totals(k), strict=True):
                for at in range(k * bets, (k + 1) * bets) if row and total > shown else ():
                    row[at] *= shown / total
        self.as_best, self.later = [], []
        self.apart = self._apart()

    def _count(self, raw: float, tested: bool, share: float) -> None:
        """``raw``: the reward less the expected one."""
        self.credit = min(self.credit + self.rate, self.lump)
        if tested:
            self.n_tested += 1
            self.sum_tested += raw
        else:
            self.n_reference += 1
            self.sum_reference += raw
        score = raw / share if tested else -raw / (1.0 - share)
        self.score += self.sign * score
        self.square += score * score

    def _bet(self, row: list[float], x: float, p0: float, tested: bool, share: float, rated: bool = True) -> None:
        """The same bets against each question: tested at least ``d`` better. Never negative, mean at most 1 where that
        is true. ``x``: a reward, or a made-up one: where rewards differ by ``d``, one of the two does, in its own unit,
        for what they differ by is the sum of both, the parts p0 and 1 - p0 of it. Only runs that are ``rated`` can
        differ by ``d``: an unrated one keeps what a rated one loses, so that the mean is at most 1 whatever their share
        is. That holds where both arms are rated alike. Of graded rewards that are rated unlike, and lower by less than
        ``margin``, the larger of both means was 1.012 at most in a search.
        """
        p0 = min(max(p0, LEAST_RATE), 1.0 - LEAST_RATE)
        odds, of_reference, apart = p0 / (1.0 - p0), (1.0 - share) * p0, len(BET_SIZES)
        margin, shifts = self.margin, self.shifts[1:]
        for bet, size in enumerate(BET_SIZES):
            tilted = odds * size
            p1 = tilted / (1.0 + tilted)
            mean = share * p1 + of_reference
            p = p1 if tested else p0
            factor = x * p / mean + (1.0 - x) * (1.0 - p) / (1.0 - mean)
            # what the factor's mean wins for each unit by which the tested mean is lower
            slope = share * ((1.0 - p1) / (1.0 - mean) - p1 / mean)
            lost = slope * margin
            wealth = row[bet] * (factor if rated else factor + lost) / (1.0 + lost)
            row[bet] = MAX_EVIDENCE if wealth > MAX_EVIDENCE else wealth  # noqa: FURB136  (a call of min is slow here)
            at = bet
            for d in shifts:
                at += apart
                if d > 0.0:
                    wealth = row[at] * (factor + slope * d if rated else factor)
                else:
                    lost = -slope * d
                    wealth = row[at] * (factor if rated else factor + lost) / (1.0 + lost)
                row[at] = MAX_EVIDENCE if wealth > MAX_EVIDENCE else wealth  # noqa: FURB136

    def _least(self, shift: int) -> float:
        """Wealth against a question."""
        return min(self._totals(shift))

    def _least_row(self, shift: int) -> list[float]:
        poor, good = self._totals(shift)
        first = shift * len(BET_SIZES)
        return (self.above if good < poor else self.wealths)[first : first + len(BET_SIZES)]

    def _as_best(self, shift: int) -> float:
        first = shift * len(BET_SIZES)
        return sum(self.as_best[first : first + len(BET_SIZES)])

    def _shown(self, shift: int) -> float:
        """Wealth against a question, as far as runs that lack a reward are shown to speak for it."""
        if not self.as_best:
            return self._least(shift)
        return PART_AS_BEST * self._as_best(shift) + (1.0 - PART_AS_BEST) * self.later[shift]

    def _totals(self, shift: int) -> tuple[float, float]:
        """Wealths on poor rewards, and on good ones, against a question."""
        first = shift * len(BET_SIZES)
        poor = sum(self.wealths[first : first + len(BET_SIZES)])
        return poor, sum(self.above[first : first + len(BET_SIZES)]) if self.above else poor

    def _apart(self) -> float:
        poor, good = self._totals(0)
        return good / poor if poor > 0.0 else 1.0

    def _bring_near(self) -> None:
        """Let no wealth wait for users who err the other way from here, beyond what is spare."""
        for shift in range(len(self.shifts)) if self.above else ():
            poor, good = self._totals(shift)
            least = min(poor, good)
            if shift == 0 and least > 0.0:
                # what the larger one had more at the last start counts as used, as far as it made the smaller one now
                used = least / min(poor * min(self.apart, 1.0), good / max(self.apart, 1.0))
                self.spare = max(self.spare / used, 1.0)
            most, first = least * (self.spare if shift == 0 else 1.0), shift * len(BET_SIZES)
            for row, total in ((self.wealths, poor), (self.above, good)):
                for at in range(first, first + len(BET_SIZES)) if total > most else ():
                    row[at] *= most / total

    def suspected(self) -> float:
        """Wealth with each run that lacks a reward as the worst, whatever is shown."""
        return self._least(0)

    def growth(self) -> float:
        """Of what is suspected, for each unit put in: 1 without evidence."""
        return self._least(0) / self.put if self.put > 0.0 else 1.0

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
            wealth = self._shown(k)
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
        self._keep_shown()
        self._bring_near()
        credit, put, spare, poor, good = self.credit, self.put, self.spare, self.wealths, self.above
        self.load(kept)
        self._keep_shown()
        self.credit, self.put = credit, min(self.put, put)
        if good or self.above:
            self.above = [min(pair) for pair in zip(good or poor, self.above or self.wealths, strict=True)]
        self.wealths = [min(pair) for pair in zip(poor, self.wealths, strict=True)]
        self.spare, self.apart = min(self.spare, spare), 1.0
        self._bring_near()
        self.apart = self._apart()
        self.wealth = self._shown(0)

    def dump(self) -> list[JsonValue]:
        head = [self.credit, self.put, self.n_tested, self.n_reference, self.sum_tested, self.sum_reference]
        rates = [self.of_poor, self.of_good, self.n, self.spare, self.apart] if self.above else []
        return [*head, self.score, self.square, *self.wealths, *self.above, *rates, *self.as_best, *self.later]

    def load(self, kept: JsonValue) -> None:
        """Of a program that knew no unrated runs, too."""
        n = len(self.wealths)
        missing = n + len(self.shifts)
        shapes = [some + more for some in (8 + n, 8 + 2 * n, 13 + 2 * n) for more in (0, missing)]
        if not isinstance(kept, list) or len(kept) not in shapes:
            raise TypeError("evidence of another shape")
        numbers = [float(x) for x in kept if isinstance(x, int | float)]
        if len(numbers) != len(kept):
            raise TypeError("evidence that is not numbers")
        self.as_best, self.later, self.borne_out = [], [], 0.0
        if len(numbers) in shapes[1::2]:
            self.as_best, self.later = numbers[-missing : n - missing], numbers[n - missing :]
            numbers = numbers[:-missing]
        self.credit, self.put = numbers[0], numbers[1]
        self.n_tested, self.n_reference = int(numbers[2]), int(numbers[3])
        self.sum_tested, self.sum_reference, self.score, self.square = numbers[4:8]
        self.wealths, self.above = numbers[8 : 8 + n], numbers[8 + n : 8 + 2 * n]
        if rates := numbers[8 + 2 * n :]:
            self.of_poor, self.of_good, self.n, self.spare, self.apart = rates
        self.wealth = self._shown(0)
