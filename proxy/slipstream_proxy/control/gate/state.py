"""What the gate knows of one trained model: data alone. ``trial`` moves it; ``suspicion``, ``shares`` and ``verdict``
read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream_proxy.control.gate.baseline import Baseline
from slipstream_proxy.control.gate.evidence import Evidence
from slipstream_proxy.control.gate.line import Deadline
from slipstream_proxy.control.gate.scale import RewardScale, ScaleWatch

if TYPE_CHECKING:
    from pydantic import JsonValue

    from slipstream_proxy.control.gate.rules import TrialSettings

MIN_SCALE_REWARDS: Final = 32
"""Rewards on a new scale before which there is no verdict."""


class TrialRuns:
    """Counts of finished episodes."""

    def __init__(self) -> None:
        self.own = self.own_late = 0
        """Of the version that is served, and those of them that had no reward before the deadline."""
        self.own_above = 0.0
        """Of the rewards of the version that is served, each minus what the control is expected to get."""
        self.own_sum = 0.0
        """Of the rewards of the version that is served, each minus what the control or the versions before it get."""
        self.since = self.late = 0
        """On trial, since the control moved, and those of them that had no reward before the deadline."""
        self.seen = 0

    def forget_own(self) -> None:
        """Another version is served."""
        self.own = self.own_late = 0
        self.own_sum = self.own_above = 0.0

    def forget_trial(self) -> None:
        """What was counted on trial is no evidence any more."""
        self.since = self.late = 0
        self.forget_own()


class TrialState:
    """Three versions matter: the one on trial, the last accepted one (``control``), and the one that no later one was
    shown to beat (``best``).
    """

    def __init__(self, settings: TrialSettings) -> None:
        self.settings = settings
        self.control = self.best = self.tried = 0
        """Versions. ``tried`` equals ``control`` while nothing is on trial."""
        self.floor = self.best_floor = 0
        """Only later versions are evidence: what earlier ones did was another question's."""
        self.newest = 0
        """The newest version on trial for which a run was counted, of any arm."""
        self.evidence = Evidence(settings)
        self.runs = TrialRuns()
        self.baseline = Baseline()
        self.deadline = Deadline(settings.deadline, missing_fails=settings.missing_fails)
        self.scale = RewardScale(*(settings.reward_range or (None, None)))
        self.watch = ScaleWatch()
        self.rescaled = 0
        """How often the rewards' scale was found or said to have changed."""
        self.declared = 0.0
        """When people last said so; seconds since the epoch."""
        self.fresh = 0.0
        """Runs that began before are no evidence: their rewards may be on another scale."""
        self.widest = 0.0
        """The widest range of rewards while ``runs.since`` was counted."""
        self.undecided = 0
        """Versions that were on trial since the last verdict."""
        self.silent = False
        """No run of the version on trial has ended, although the control's would have: it gets few runs until then, or
        until they count as failed. From there on an even share tells the two apart soonest.
        """
        self.borne_out = 0.0
        """``deadline.borne_out`` when the version on trial came."""
        self.replayed: float | None = None
        """Growth of the evidence against the version on trial in its replay, which it passed. It moves shares alone:
        the bets are on rewards of users. None: it was not replayed.
        """
        self.kept_from: frozenset[str] = frozenset()
        """Groups for which alone what is served was taken back: their runs are no evidence."""
        self.ahead = 0.0
        """Standard errors by which held-out runs of later versions are above those of the best one."""
        self.frozen_by_hand: bool | None = None  # as ``AdapterRegistry.frozen``
        self.asked: int | None = None
        """``runs.seen`` when a newer version first had to wait for the one that is served."""
        self.held = 0
        """Runs for which newer versions had to wait the last time that they had to."""

    @property
    def on_trial(self) -> bool:
        return self.tried != self.control

    @property
    def live(self) -> int:
        """What an episode of no other arm gets."""
        return self.control if self.settings.canary else self.tried

    @property
    def unsettled(self) -> bool:
        """It is not known yet what a reward means."""
        return self.watch.doubt or (self.rescaled > 0 and self.scale.count < MIN_SCALE_REWARDS)

    def dump(self) -> dict[str, JsonValue]:
        """For a restart."""
        runs = self.runs
        return {
            "versions": [self.control, self.best, self.tried, self.floor, self.best_floor, self.newest],
            "counts": [runs.own, runs.since, runs.seen, self.undecided],
            "own_sum": runs.own_sum,
            "own_above": runs.own_above,
            "late": [runs.late, runs.own_late],
            "kept_from": [*sorted(self.kept_from)],
            "deadline": self.deadline.dump(),
            "watch": self.watch.dump(),
            "rescaled": self.rescaled,
            "declared": self.declared,
            "fresh": [self.fresh, self.widest],
            "scale": self.scale.dump(),
            "baseline": self.baseline.dump(),
            **self.evidence.dump(),
        }

    def load(self, kept: dict[str, JsonValue]) -> None:
        """Raises ``TypeError``, ``KeyError``, ``ValueError`` for what another version of this program wrote."""
        numbers, counts = _integers(kept["versions"], 6), _integers(kept["counts"], 4)
        scale, baseline, runs = kept["scale"], kept["baseline"], self.runs
        if not isinstance(scale, dict) or not isinstance(baseline, dict):
            raise TypeError("evidence of another shape")
        self.evidence.load(kept)
        self.scale.load(scale)
        self.baseline.load(baseline)
        self.control, self.best, self.tried, self.floor, self.best_floor, self.newest = numbers
        runs.own, runs.since, runs.seen, self.undecided = counts
        runs.late, runs.own_late = _integers(kept.get("late", [0, 0]), 2)
        self.deadline.load(kept.get("deadline"))
        self.watch.load(kept.get("watch"))
        kept_from = kept.get("kept_from", [])
        self.kept_from = frozenset(map(str, kept_from)) if isinstance(kept_from, list) else frozenset()
        (self.rescaled,) = _integers([kept.get("rescaled", 0)], 1)
        self.declared, runs.own_sum, runs.own_above = (
            float(x) if isinstance(x := kept.get(name, 0.0), int | float) else 0.0
            for name in ("declared", "own_sum", "own_above")
        )
        fresh = kept.get("fresh", [self.declared, 0.0])
        if isinstance(fresh, list):
            self.fresh, self.widest = (float(x) if isinstance(x, int | float) else 0.0 for x in fresh)


def _integers(kept: JsonValue, count: int) -> list[int]:
    if not isinstance(kept, list) or len(kept) != count:
        raise TypeError("evidence of another shape")
    return [int(x) for x in kept if isinstance(x, int | float)]
