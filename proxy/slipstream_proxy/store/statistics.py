"""What the page, the metrics and the gate compare: rewards by adapter, arm and source."""

from __future__ import annotations

from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.store.counts import counts
from slipstream_proxy.store.days import DayTables
from slipstream_proxy.store.driver import Driver
from slipstream_proxy.store.funnel import FunnelCounts, funnel_counts
from slipstream_proxy.store.pace import Pace
from slipstream_proxy.store.rewards import RewardTable
from slipstream_proxy.store.values import Rules


class StoreStatistics:
    def __init__(self, db: Driver, rules: Rules, pace: Pace, days: DayTables, rewards: RewardTable) -> None:
        self.db = db
        self.rules = rules
        self.pace = pace
        self.days = days
        self.rewards = rewards

    def counts(self, now: float) -> JsonObject:
        """Episodes and groups by state, calls, untrainable by reason, rewards by source, missing rewards by name."""
        with self.db.read() as tx:
            orphans = self.rewards.count_orphans(tx)
            return counts(tx, self.rules, self.days.tables(tx), orphans, now)

    def funnel(self, judge_name: str, now: float) -> FunnelCounts:
        """The numbers behind "why is there no step yet". ``judge_name``: the reward name that the judge writes."""
        with self.db.read() as tx:
            orphans = self.rewards.count_orphans(tx)
            return funnel_counts(tx, self.rules, self.pace, self.days.tables(tx), judge_name, orphans, now)

    def success_by_adapter(self) -> list[JsonObject]:
        """For the page: adapter, split, arm, episodes, mean reward, std (of the sample; 0 for one)."""
        sql = """SELECT model, adapter, split, arm, count(*), avg(reward), coalesce(stddev_samp(reward), 0),
            min(started), max(started) FROM t_episodes WHERE reward IS NOT NULL AND state <> 'deleted'
            AND adapter IS NOT NULL
            GROUP BY model, adapter, split, arm ORDER BY model, min(started), split, arm"""
        names = ("model", "adapter", "split", "arm", "episodes", "mean", "std", "first", "last")
        with self.db.read() as tx:
            return [dict(zip(names, row, strict=True)) for row in tx.all(sql)]

    def rewards_by_source(self) -> list[JsonObject]:
        """Source, adapter, split, count, mean, std (of the sample; 0 for one) of the rewards that count: the latest
        of each name.
        """
        sql = """SELECT r.source, e.adapter, e.split, count(*), avg(r.value), coalesce(stddev_samp(r.value), 0) FROM (
            SELECT DISTINCT ON (eid, call, name, source) eid, source, value FROM t_rewards
            ORDER BY eid, call, name, source, seq DESC) r
            JOIN t_episodes e ON e.eid = r.eid WHERE e.state <> 'deleted' AND e.adapter IS NOT NULL
            GROUP BY r.source, e.adapter, e.split ORDER BY r.source, e.adapter, e.split"""
        names = ("source", "adapter", "split", "count", "mean", "std")
        with self.db.read() as tx:
            return [dict(zip(names, row, strict=True)) for row in tx.all(sql)]
