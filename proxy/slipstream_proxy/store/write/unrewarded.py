"""Runs that stopped and never got a reward: a group does not wait for them for ever.

An agent that crashes posts no reward. Its run ends because no call comes, joins its group, and all others of that group
would wait for it until they are stale. So it leaves a complete group in which at least two others have their reward,
once rewards usually come sooner. If its reward comes after all, it joins the group that forms then.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from slipstream_proxy.store.learning.groups import Agent, GroupTable, Pace, quantile
from slipstream_proxy.store.read.counts import LEFT_UNREWARDED_KEY, left_unrewarded
from slipstream_proxy.store.tables.driver import IN, Tx
from slipstream_proxy.store.tables.rows import EpisodeRow
from slipstream_proxy.store.tables.tallies import TallyTable, set_meta
from slipstream_proxy.store.values import Rules

KNOWN_REWARDS, MIN_KNOWN_REWARDS = 200, 8
"""Newest rewards that say how long after a run they come, and how few say nothing."""
USUAL_SHARE = 0.95
LATE_FACTOR = 3.0
"""Times the delay that so many rewards do not exceed, after which one is not waited for."""
MIN_REWARDED = 2
"""Runs with a reward that a group needs to go on."""


class _Lacking(NamedTuple):
    group: str
    size: int
    eid: str
    agent: Agent
    untagged: bool
    state: str
    idle: bool
    last_end: float


class UnrewardedRuns:
    def __init__(self, rules: Rules, pace: Pace, groups: GroupTable, tallies: TallyTable) -> None:
        self.rules, self.pace, self.groups, self.tallies = rules, pace, groups, tallies

    def leave(self, tx: Tx, now: float) -> tuple[list[str], set[str]]:
        """→ (the runs that left, their groups). A judge scores complete groups, so where one does, none leaves."""
        if any(name in self.rules.judged for name in self.rules.weights):
            return [], set()
        found = self._lacking(tx)
        latest = max((now - run.last_end for run in found), default=0.0)
        if latest <= 0.0 or (most := self._patience(tx)) >= latest:
            return [], set()
        lacking: dict[str, list[_Lacking]] = defaultdict(list)
        for run in found:
            lacking[run.group].append(run)
        gone = {
            group: runs
            for group, runs in lacking.items()
            if runs[0].size - len(runs) >= MIN_REWARDED and all(self._is_over(run, most, now) for run in runs)
        }
        self._ungroup(tx, gone)
        return [run.eid for runs in gone.values() for run in runs], set(gone)

    def _lacking(self, tx: Tx) -> list[_Lacking]:
        sql = "SELECT id, n FROM t_groups WHERE state = 'waiting_reward'"
        sizes = {group: int(n) for group, n in tx.all(sql)}
        if not sizes:
            return []
        sql = f"""SELECT grp, eid, key, model, untagged, state, idle, last_end FROM t_episodes
            WHERE reward IS NULL AND grp {IN}"""
        return [
            _Lacking(group, sizes[group], eid, Agent(key, model), *rest)
            for group, eid, key, model, *rest in tx.all(sql, (list(sizes),))
        ]

    def _patience(self, tx: Tx) -> float:
        """Seconds after a run's end in which its reward is waited for; ``groups.max_age`` at most."""
        sql = f"""SELECT e.last_end, r.ts FROM (SELECT eid, ts FROM t_rewards ORDER BY seq DESC LIMIT {KNOWN_REWARDS}) r
            JOIN t_episodes e ON e.eid = r.eid"""
        delays = [max(ts - end, 0.0) for end, ts in tx.all(sql)]
        if len(delays) < MIN_KNOWN_REWARDS:
            return self.rules.group_max_age
        return min(LATE_FACTOR * quantile(delays, USUAL_SHARE), self.rules.group_max_age)

    def _is_over(self, run: _Lacking, most: float, now: float) -> bool:
        """Its reward is long overdue. It was taken for idle already: it has as long again to go on."""
        pause = self.pace.idle_after(run.agent, now, untagged=run.untagged)
        return run.state == "done" and run.idle and now - run.last_end > max(most, 2.0 * pause)

    def _ungroup(self, tx: Tx, gone: dict[str, list[_Lacking]]) -> None:
        if not gone:
            return
        eids = [run.eid for runs in gone.values() for run in runs]
        with self.tallies.around(tx, eids):
            tx.update("t_episodes", ("eid",), ("grp",), [(eid, None) for eid in eids])
        tx.update("t_groups", ("id",), ("n",), [(group, runs[0].size - len(runs)) for group, runs in gone.items()])
        set_meta(tx, LEFT_UNREWARDED_KEY, str(left_unrewarded(tx) + len(eids)))


def is_back(ep: EpisodeRow) -> bool:
    """Whether the reward of a run that left its group has come after all."""
    return ep.state == "done" and ep.idle and ep.grp is None and ep.reward is not None
