"""The gate's state of one trained model: rewards in their order go in, verdicts and the control arms' shares come out.

Three versions matter: the one on trial, the last accepted one (``control``), and the one that no later one was shown to
beat (``best``). Evidence of the trial against either lasts over versions. It ends when the control moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream_proxy.assignment import BEST, CANDIDATE, CONTROL, LIVE
from slipstream_proxy.control.gate.baseline import Baseline
from slipstream_proxy.control.gate.detector import BettingDetector
from slipstream_proxy.control.gate.outcome import ArmOutcome
from slipstream_proxy.control.gate.rules import Decision, TrialSettings
from slipstream_proxy.control.gate.scale import RewardScale

if TYPE_CHECKING:
    from pydantic import JsonValue

LUMP, RATE = 0.25, 0.1 / 2000
"""Evidence against the control: wealth put in at first, and earned with each episode."""
BEST_LUMP, BEST_RATE = 0.35, 0.3 / 2000
"""Evidence against the best version. All four sum to 1 over the first 2,000 episodes: the false-alarm guarantee."""
YOUNG = 12
"""Finished episodes of a version before which the control gets ``YOUNG_SHARE``: a broken adapter shows at once."""
YOUNG_SHARE = 0.3
BEST_PART = 0.7
"""The best version's part of the held-out share, while control and best differ."""
MOST_SHARE = 0.5
OWN = 16
"""Finished episodes of a version itself before it may be accepted."""
TRUSTED_Z = -1.5
HOLD = 2.0
"""Growth of the evidence above which a newer version waits (``gate.pace = "careful"``), and above which the control,
not the best version, is what a rollback goes back to.
"""
OWN_Z = -2.0
"""A version whose own rewards lie further below those of both the control and the versions before it, in standard
errors, is not accepted yet.
"""


class GateTrial:
    def __init__(self, settings: TrialSettings) -> None:
        self.settings = settings
        low, high = settings.reward_range if settings.reward_range is not None else (None, None)
        self.scale = RewardScale(low, high)
        self.baseline = Baseline()
        self.worse = BettingDetector(1, LUMP, RATE, shifts=settings.shifts)
        self.better = BettingDetector(-1, LUMP, RATE, shifts=settings.shifts)
        self.worse_best = BettingDetector(1, BEST_LUMP, BEST_RATE, shifts=settings.shifts)
        self.better_best = BettingDetector(-1, BEST_LUMP, BEST_RATE, shifts=settings.shifts)
        self.control = self.best = self.tried = 0
        """Versions. ``tried`` equals ``control`` while nothing is on trial."""
        self.floor = self.best_floor = 0
        """Only later versions are evidence: what earlier ones did was another question's."""
        self.newest = 0
        """The newest version on trial that has a finished episode."""
        self.own = 0
        self.own_sum = 0.0
        """Of the rewards of the version that is served, each minus what the control or the versions before it get."""
        self.since = 0
        """Finished episodes on trial since the control moved."""
        self.undecided = 0
        """Versions that were on trial since the last verdict."""
        self.seen = 0
        self.asked: int | None = None
        """``seen`` when a newer version first had to wait for the one that is served."""
        self._mark()

    def _mark(self) -> None:
        self.kept: list[float] = list(self.worse_best.wealths)
        self.kept_put = self.worse_best.put

    @property
    def on_trial(self) -> bool:
        return self.tried != self.control

    # what new episodes get

    def shares(self) -> tuple[float, float]:
        """Shares of new episodes for (control, best); the rest is live. In canary mode the first is the candidate's."""
        s = self.settings
        apart = self.control != self.best
        if s.canary:
            best = s.holdout * BEST_PART if apart and not self.on_trial else 0.0
            return (s.share if self.on_trial else 0.0), best
        if not s.holdout or not (self.on_trial or apart):
            return 0.0, 0.0
        held = s.holdout
        if self.on_trial and self.own < YOUNG:
            held = max(held, YOUNG_SHARE)
        room = max(MOST_SHARE - held, 0.0)
        first = _suspicion(self.worse) if self.on_trial else 0.0
        second = _suspicion(self.worse_best)
        if not apart:
            return held + room * max(first, second), 0.0
        if not self.on_trial:
            return 0.0, held + room * second
        if first + second > 1.0:
            first, second = first / (first + second), second / (first + second)
        return held * (1.0 - BEST_PART) + room * first, held * BEST_PART + room * second

    def arms(self) -> list[tuple[int, str, float]]:
        """(version, arm, share) of every arm beside the live one, as ``assign`` takes them."""
        first, second = self.shares()
        if self.settings.canary:
            found = [(self.tried, CANDIDATE, first), (self.best, BEST, second)]
        else:
            found = [(self.control, CONTROL, first), (self.best, BEST, second)]
        return [(version, arm, round(share, 6)) for version, arm, share in found if share > 0.0]

    @property
    def live(self) -> int:
        """What an episode of no other arm gets."""
        return self.control if self.settings.canary else self.tried

    def waits(self, pace: str | int) -> bool:
        """Whether a newer version that has come is to wait (``gate.pace``)."""
        if not isinstance(pace, str):
            return self.on_trial and self.undecided >= pace
        return pace == "careful" and self._is_held()

    def _is_held(self) -> bool:
        """A slow slide is likely, or only rewards of the served version itself are missing for it to be accepted: where
        rewards come later than versions, none would ever be. It is held no longer than 20 times ``settle`` episodes.
        """
        slides = self.tried != self.best and self.worse_best.growth() > HOLD
        due = self.on_trial and self.since >= self.settings.settle and self.own < OWN and self.trusted()
        if not slides and not due:
            return False
        if self.asked is None:
            self.asked = self.seen
        return self.seen - self.asked < 20 * self.settings.settle

    # what happens to versions

    def serve(self, version: int) -> None:
        """A new version is on trial. The evidence goes on; its first finished episode is a new start."""
        self.tried = version
        self.own, self.own_sum = 0, 0.0
        self.asked = None
        self.undecided += 1

    def accept(self) -> None:
        """The version on trial is the control from now on, and the best one too if it has beaten that."""
        proven = self.beats_best()
        self.control = self.floor = self.tried
        self.baseline.accept()
        self.since = self.undecided = 0
        self.worse.reset()
        self.better.reset()
        if proven:
            self.move_best(self.tried)
        else:
            self._mark()

    def beats_best(self) -> bool:
        """Whether what is served was shown to be better than the best version."""
        return self.better_best.wealth >= 1.0 / self.settings.alpha

    def roll_back(self, to_best: bool, made: int) -> None:
        """What is served is taken back: to the control, or to the best version. ``made``: the newest version that there
        is.

        Versions up to there go on from the one that is taken back, so they are not tried.
        """
        self.floor = self.best_floor = max(made, self.tried, self.newest, self.floor)
        self.since = self.own = self.undecided = 0
        self.own_sum = 0.0
        if to_best or self.control == self.best:
            self.move_best(self.best, fresh=True)
            self.control = self.best
        else:
            self.worse_best.lower_to(self.kept, self.kept_put)
        self.worse.reset(fresh=True)
        self.better.reset(fresh=True)
        self.tried = self.control

    def decide_by_hand(self, control: int) -> None:
        """A person, or an engine's refusal, has chosen. That version is control and best; all evidence begins again."""
        self.floor = self.best_floor = max(self.tried, self.newest, self.floor, control)
        self.control = self.tried = control
        self.since = self.own = self.undecided = 0
        self.own_sum = 0.0
        self.move_best(control, fresh=True)
        self.worse.reset(fresh=True)
        self.better.reset(fresh=True)

    def move_best(self, version: int, *, fresh: bool = False) -> None:
        """Slides are measured against this version from now on."""
        self.best = version
        self.best_floor = max(self.best_floor, version)
        self.worse_best.reset(fresh=fresh)
        self.better_best.reset(fresh=fresh)
        self._mark()

    # evidence

    def observe(self, outcome: ArmOutcome) -> Decision:
        """The next episode whose reward is final. Its reward changes scale and baseline after it was counted."""
        self.seen += 1
        x = self.scale.unit(outcome.reward)
        expected = self.baseline.of(outcome.task)
        tested = self._against_control(outcome, x, expected)
        self._against_best(outcome, x, expected)
        gone = not tested and outcome.version <= self.floor and outcome.version != self.control
        if outcome.arm != BEST and not gone:
            self.baseline.see(x, outcome.task, tested=tested or outcome.version > self.floor)
        low, high = self.scale.low, self.scale.high
        if self.scale.see(outcome.reward):
            self.baseline.rescale(low, high, self.scale.low, self.scale.high)
        return self.verdict()

    def _against_control(self, outcome: ArmOutcome, x: float, expected: float) -> bool:
        """→ Whether it is an episode on trial."""
        canary = self.settings.canary
        tested = outcome.candidate if canary else outcome.live
        reference = outcome.live if canary else outcome.control
        if tested <= 0.0 or reference <= 0.0 or _is_over(outcome, self.floor):
            return False
        share = tested / (tested + reference)
        on_trial = outcome.arm == (CANDIDATE if canary else LIVE) and outcome.version > self.floor
        if on_trial:
            self.since += 1
            if outcome.version > self.newest:
                self.newest = outcome.version
                for detector in (self.worse, self.better, self.worse_best, self.better_best):
                    detector.start()
            if outcome.version == self.tried:
                self.own += 1
                self.own_sum += x - min(expected, self.baseline.of_tested(outcome.task))
        elif outcome.arm != (LIVE if canary else CONTROL) or outcome.version != self.control:
            return False
        self.worse.see(x, expected, on_trial, share)
        self.better.see(x, expected, on_trial, share)
        return on_trial

    def _against_best(self, outcome: ArmOutcome, x: float, expected: float) -> None:
        reference = outcome.best if outcome.best > 0.0 else outcome.control
        if outcome.live <= 0.0 or reference <= 0.0 or _is_over(outcome, self.best_floor):
            return
        tested = outcome.arm == LIVE and outcome.version > self.best_floor
        if not tested and (outcome.arm == LIVE or outcome.version != self.best):
            return
        share = outcome.live / (outcome.live + reference)
        self.worse_best.see(x, expected, tested, share)
        self.better_best.see(x, expected, tested, share)

    def verdict(self) -> Decision:
        limit = 1.0 / self.settings.alpha
        apart = self.tried != self.best
        if not self.on_trial and not apart:
            return Decision.UNDECIDED
        if self.worse.wealth + self.worse_best.wealth >= limit:
            # What fails altogether is worse than both: that says nothing against the control.
            slides = self.shown_by_best and self.worse.growth() < HOLD
            return Decision.ROLLBACK_BEST if slides or not self.on_trial else Decision.ROLLBACK
        if not self.on_trial or self.own < OWN:
            return Decision.UNDECIDED
        if self.better.wealth >= limit or (self.since >= self.settings.settle and self.trusted()):
            return Decision.ACCEPT
        return Decision.UNDECIDED

    @property
    def shown_by_best(self) -> bool:
        """Whether most of the evidence against what is served comes from the comparison with the best version."""
        return self.control != self.best and self.worse_best.wealth > self.worse.wealth

    def trusted(self) -> bool:
        """Nothing speaks against the version on trial."""
        calm = self.worse.growth() < 1.5 and self.worse_best.growth() < 2.0
        fair = self.own_sum >= OWN_Z * 0.5 * self.own**0.5  # a reward spreads by at most one half
        return calm and fair and self.worse.z() > TRUSTED_Z

    # kept over a restart

    def dump(self) -> dict[str, JsonValue]:
        return {
            "versions": [self.control, self.best, self.tried, self.floor, self.best_floor, self.newest],
            "counts": [self.own, self.since, self.seen, self.undecided],
            "own_sum": self.own_sum,
            "scale": self.scale.dump(),
            "baseline": self.baseline.dump(),
            "evidence": [d.dump() for d in (self.worse, self.better, self.worse_best, self.better_best)],
            "kept": [self.kept_put, *self.kept],
        }

    def load(self, kept: dict[str, JsonValue]) -> None:
        """Raises ``TypeError``, ``KeyError``, ``ValueError`` for what another version of this program wrote."""
        numbers = _integers(kept["versions"], 6)
        counts = _integers(kept["counts"], 4)
        evidence, scale, baseline, marked = kept["evidence"], kept["scale"], kept["baseline"], kept["kept"]
        if not isinstance(evidence, list) or not isinstance(scale, dict) or not isinstance(baseline, dict):
            raise TypeError("evidence of another shape")
        if not isinstance(marked, list) or len(marked) != 1 + len(self.kept):
            raise TypeError("evidence of another shape")
        detectors = (self.worse, self.better, self.worse_best, self.better_best)
        for detector, state in zip(detectors, evidence, strict=True):
            detector.load(state)
        self.scale.load(scale)
        self.baseline.load(baseline)
        self.control, self.best, self.tried, self.floor, self.best_floor, self.newest = numbers
        self.own, self.since, self.seen, self.undecided = counts
        own_sum = kept.get("own_sum", 0.0)
        self.own_sum = float(own_sum) if isinstance(own_sum, int | float) else 0.0
        values = [float(x) for x in marked if isinstance(x, int | float)]
        self.kept_put, self.kept = values[0], values[1:]


def _is_over(outcome: ArmOutcome, floor: int) -> bool:
    """Whether the version that it was compared with at its assignment is no longer evidence.

    After a rollback, episodes of both arms are still running. The tested ones are no evidence any more. The control's
    must not be either: successes of one arm alone look as if that arm were the better one.
    """
    return outcome.tried is not None and outcome.tried <= floor


def _suspicion(detector: BettingDetector) -> float:
    """0: nothing speaks against it; 1: the control arm gets all that it may."""
    z, growth = detector.z(), detector.growth()
    if z < -1.6 or growth > 2.0:
        return 1.0
    return 0.4 if z < -1.0 or growth > 1.5 else 0.0


def _integers(kept: JsonValue, count: int) -> list[int]:
    if not isinstance(kept, list) or len(kept) != count:
        raise TypeError("evidence of another shape")
    return [int(x) for x in kept if isinstance(x, int | float)]
