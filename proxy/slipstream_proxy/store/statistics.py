"""What the page, the metrics and the gate compare: rewards by adapter, arm and source."""

from __future__ import annotations

from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.store.counts import StoreCounts, counts, missing_rewards, store_counts, waiting_groups
from slipstream_proxy.store.driver import Driver, Tx
from slipstream_proxy.store.figures import ExactFigure, PacedFigure
from slipstream_proxy.store.funnel import (
    DearFigures,
    FunnelCounts,
    FunnelFigures,
    dear_figures,
    funnel_counts,
    funnel_figures,
    judged,
)
from slipstream_proxy.store.pace import Pace
from slipstream_proxy.store.rewards import RewardTable
from slipstream_proxy.store.tallies import Tallied, TallyTable
from slipstream_proxy.store.values import Rules


class StoreStatistics:
    def __init__(self, db: Driver, rules: Rules, pace: Pace, tallies: TallyTable, rewards: RewardTable) -> None:
        self.db = db
        self.rules = rules
        self.pace = pace
        self.tallies = tallies
        self.rewards = rewards
        self._kept: ExactFigure[Tallied] = ExactFigure()
        self._counts: ExactFigure[StoreCounts] = ExactFigure()
        self._funnel: ExactFigure[FunnelFigures] = ExactFigure()
        self._missing: PacedFigure[dict[str, int]] = PacedFigure()
        self._orphans: PacedFigure[int] = PacedFigure()
        self._dear: PacedFigure[DearFigures] = PacedFigure()

    def counts(self, now: float) -> JsonObject:
        """Episodes and groups by state, calls, untrainable by reason, rewards by source, missing rewards by name."""
        stand = self.db.stand()
        orphans = self._orphans.get(None, lambda: self._look_orphans(now), stand)
        with self.db.read() as tx:
            found = self._found(tx, stand)
        waits = any(found.groups.of("waiting_reward"))
        return counts(found, self._missing.get(None, self._look_missing, stand) if waits else {}, orphans, now)

    def funnel(self, judge_name: str, now: float) -> FunnelCounts:
        """The numbers behind "why is there no step yet". ``judge_name``: the reward name that the judge writes."""
        stand = self.db.stand()
        dear = self._dear.get(judge_name, lambda: self._look(judge_name), stand)
        orphans = self._orphans.get(None, lambda: self._look_orphans(now), stand)
        with self.db.read() as tx:
            found = self._found(tx, stand)
            figures = self._funnel.get(stand, lambda: funnel_figures(tx, found))
            scored = judged(tx, found.kept, now)
        return funnel_counts(self.rules, self.pace, found, figures, dear, now, orphans=orphans, judged=scored)

    def _found(self, tx: Tx, stand: int | None) -> StoreCounts:
        return self._counts.get(stand, lambda: store_counts(tx, self._kept.get(stand, lambda: self.tallies.all(tx))))

    def _tallied(self) -> Tallied:
        stand = self.db.stand()
        with self.db.read() as tx:
            return self._kept.get(stand, lambda: self.tallies.all(tx))

    def success_by_adapter(self) -> list[JsonObject]:
        """For the page: adapter, split, arm, episodes, mean reward, std (of the sample; 0 for one).

        ``first`` and ``last``: when its first and its last rewarded episode began.
        """
        kept = self._tallied().success
        found = [
            dict(zip(("model", "adapter", "split", "arm"), parts, strict=True))
            | {"episodes": t.n, "mean": t.mean, "std": t.spread, "first": t.low, "last": t.high}
            for parts, t in kept.items()
        ]
        return sorted(found, key=lambda r: (r["model"], r["first"], r["split"], r["arm"]))

    def rewards_by_source(self) -> list[JsonObject]:
        """Source, adapter, split, count, mean, std (of the sample; 0 for one) of the latest rewards of each name."""
        kept = self._tallied().sources
        return [
            dict(zip(("source", "adapter", "split"), parts, strict=True))
            | {"count": t.n, "mean": t.mean, "std": t.spread}
            for parts, t in sorted(kept.items())
        ]

    def _look(self, judge_name: str) -> DearFigures:
        with self.db.read() as tx:
            return dear_figures(tx, self.rules, judge_name)

    def _look_missing(self) -> dict[str, int]:
        with self.db.read() as tx:
            return missing_rewards(tx, self.rules, waiting_groups(tx))

    def _look_orphans(self, now: float) -> int:
        with self.db.read() as tx:
            return self.rewards.count_orphans(tx, now)
