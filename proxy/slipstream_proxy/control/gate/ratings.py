"""Bets on how often runs are rated, where not all of them get a reward: people rate some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.shared.error_budget import RATINGS_STAKE
from slipstream_proxy.control.gate.detector import BettingDetector
from slipstream_proxy.control.gate.scale import number

if TYPE_CHECKING:
    from pydantic import JsonValue


class RatingWatch:
    """Whether users rate what is on trial as often as the control, where not all runs get a reward.

    Null hypothesis: given the past, a run is rated with one probability in both arms. It has two bets, with an error
    level of ``gate.alpha`` for both together, of which no verdict depends: a person is asked.
    """

    def __init__(self) -> None:
        self.bets = [
            BettingDetector(sign, RATINGS_STAKE.at_first / 2.0, RATINGS_STAKE.per_run, shifts=False) for sign in (1, -1)
        ]
        self.counts = [0, 0, 0, 0]
        """Runs of the control, those of them that are rated, and the same of what is on trial."""

    def see(self, rated: bool, expected: float, tested: bool, share: float) -> None:
        """As ``BettingDetector.see``. ``expected``: the share of the control's runs that are rated."""
        self.counts[2 * tested] += 1
        self.counts[2 * tested + 1] += rated
        for bets in self.bets:
            bets.see(float(rated), expected, tested, share)

    def evidence(self) -> float:
        """That the rates differ, either way."""
        return sum(bets.wealth for bets in self.bets)

    def shares(self) -> tuple[float, float] | None:
        """→ (of the control's runs, of those on trial) that are rated. None: an arm is empty."""
        control, rated, tested, also = self.counts
        return (rated / control, also / tested) if control and tested else None

    def dump(self) -> dict[str, JsonValue]:
        return {"bets": [bets.dump() for bets in self.bets], "counts": [*self.counts]}

    def load(self, kept: JsonValue) -> None:
        """None, of a program that did not look: it begins now."""
        if not isinstance(kept, dict):
            return
        counts, known = kept["counts"], kept["bets"]
        if not isinstance(counts, list) or not isinstance(known, list):
            raise TypeError("rates of another shape")
        self.counts = [int(number(n)) for n in counts]
        for bets, state in zip(self.bets, known, strict=True):
            bets.load(state)
