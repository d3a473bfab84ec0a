"""What time does: idle episodes end, groups complete by age, leases run out, orphans expire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from slipstream_proxy.store.batches import BatchQueue
from slipstream_proxy.store.days import DayTables
from slipstream_proxy.store.driver import Driver, Tx
from slipstream_proxy.store.episodes import EpisodeTable
from slipstream_proxy.store.groups import GroupTable
from slipstream_proxy.store.memory import Memory
from slipstream_proxy.store.outcomes import OutcomeLog
from slipstream_proxy.store.pace import Agent, Pace
from slipstream_proxy.store.pins import PinTable
from slipstream_proxy.store.rewards import RewardTable
from slipstream_proxy.store.tallies import TallyTable
from slipstream_proxy.store.values import Rules

SELDOM = 30.0
"""Seconds between searches for what is rare and costs a look at every episode."""
AGAIN = 5.0
"""Seconds after which open episodes are looked through again, at the latest."""


class _OpenRow(NamedTuple):
    eid: str
    key: str
    model: str
    untagged: bool
    last_end: float


@dataclass(eq=False)
class Lifecycle:
    db: Driver
    rules: Rules
    memory: Memory
    pace: Pace
    days: DayTables
    episodes: EpisodeTable
    groups: GroupTable
    rewards: RewardTable
    pins: PinTable
    batches: BatchQueue
    outcomes: OutcomeLog
    tallies: TallyTable
    _swept: float = -SELDOM
    _searched: float = -SELDOM
    _looked: float = -SELDOM
    _due: float = 0.0
    """When the first open episode may be over."""

    def sweep(self, now: float, sure: float) -> None:
        """``sure``: by which rewards and ends go that no call came to."""
        with self.db.write() as tx:
            full, held = self._end_idle(tx, now)
            if not self._swept <= now < self._swept + SELDOM:
                self._swept = now
                self.pins.expire(tx, now - self.rules.idle_timeout)
                tx.run("DELETE FROM t_early WHERE ts < ?", (sure - self.rules.orphan_ttl,))
                self.tallies.compact(tx)
            complete = {*full, *self.groups.aged(tx, now)}
            self.groups.complete(tx, complete, now)
            self.groups.mark_ready(tx, complete | held, now)
            self.batches.expire(tx, now)
            self._expire_orphans(tx, now, sure)

    def _expire_orphans(self, tx: Tx, now: float, sure: float) -> None:
        """What is known to have no orphans is not searched for them."""
        if self.memory.orphans is None and not self.db.shared:
            self.memory.orphans = self.rewards.orphans(tx)
        orphans = self.memory.orphans
        if orphans is not None:
            orphans -= self.rewards.expire_orphans(tx, sure, list(orphans)) if orphans else set()
        elif not self._searched <= now < self._searched + SELDOM:
            self._searched = now
            self.rewards.expire_orphans(tx, sure, None)

    def _end_idle(self, tx: Tx, now: float) -> tuple[list[str], set[str]]:
        """→ Groups that became complete, and those that had waited for an episode that went on."""
        idle = self._idle(tx, now)
        if not idle:
            return [], set()
        ended = sorted(self.episodes.load(tx, idle).values(), key=lambda ep: (ep.last_at, ep.eid))
        for ep in ended:
            ep.state, ep.ended, ep.idle = "done", ep.last_at, True
        held = {ep.grp for ep in ended if ep.grp}
        full = self.groups.join(tx, ended, now)
        columns = ("state", "ended", "idle")
        with self.tallies.around(tx, [e.eid for e in ended]):
            tx.update("t_episodes", ("eid",), columns, [(e.eid, e.state, e.ended, e.idle) for e in ended])
            self.groups.write_members(tx, ended)
        self.outcomes.note(tx, ended, now)
        self.pins.release(tx, [e.eid for e in ended])
        self.memory.drop([e.eid for e in ended])
        return full, held

    def _idle(self, tx: Tx, now: float) -> list[str]:
        """Open episodes whose agent has paused for too long.

        They are looked through when the first of them may be over.
        """
        if self._looked <= now < self._due:
            return []
        if not self.pace.seeded:
            self.pace.seed(tx, self.days)
        # A call that has come since, or that is new, can't be over before then.
        self._looked, self._due = now, now + min(AGAIN, self.rules.idle_timeout)
        idle = []
        for row in tx.all("SELECT eid, key, model, untagged, last_end FROM t_episodes WHERE state = 'open'"):
            ep = _OpenRow(*row)
            over = ep.last_end + self.pace.idle_after(Agent(ep.key, ep.model), untagged=ep.untagged)
            if over < now:
                idle.append(ep.eid)
            else:
                self._due = min(self._due, over)
        return idle
