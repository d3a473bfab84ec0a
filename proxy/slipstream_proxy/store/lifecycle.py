"""What time does: idle episodes end, groups complete by age, leases run out, orphans expire, what was deleted is written over."""

from __future__ import annotations

import logging

from slipstream_proxy.store.batches import BatchQueue
from slipstream_proxy.store.days import DayTables
from slipstream_proxy.store.deletion import Deletion
from slipstream_proxy.store.driver import Driver, Tx
from slipstream_proxy.store.episodes import EpisodeTable
from slipstream_proxy.store.groups import GroupTable
from slipstream_proxy.store.memory import Memory
from slipstream_proxy.store.pace import LEAST_UNTAGGED, Agent, Pace
from slipstream_proxy.store.pins import PinTable
from slipstream_proxy.store.protocol import Rules
from slipstream_proxy.store.rewards import RewardTable

log = logging.getLogger("slipstream.store")


class Lifecycle:
    def __init__(
        self,
        db: Driver,
        rules: Rules,
        memory: Memory,
        pace: Pace,
        days: DayTables,
        episodes: EpisodeTable,
        groups: GroupTable,
        rewards: RewardTable,
        pins: PinTable,
        batches: BatchQueue,
        deletion: Deletion,
    ) -> None:
        self.db = db
        self.rules = rules
        self.memory = memory
        self.pace = pace
        self.days = days
        self.episodes = episodes
        self.groups = groups
        self.rewards = rewards
        self.pins = pins
        self.batches = batches
        self.deletion = deletion

    def sweep(self, now: float) -> None:
        with self.db.write() as tx:
            full, held = self._end_idle(tx, now)
            self.pins.expire(tx, now - self.rules.idle_timeout)
            complete = {*full, *self.groups.aged(tx, now)}
            self.groups.complete(tx, complete, now)
            self.groups.mark_ready(tx, complete | held, now)
            self.batches.expire(tx, now)
            expired = self.rewards.expire_orphans(tx, now)
            if self.memory.orphans is not None:
                self.memory.orphans -= expired
        try:
            self.deletion.scrub()
        except Exception:
            # It stays noted, and the next sweep tries again: there may be no room for the copy.
            log.exception("what was deleted could not be written over yet")

    def _end_idle(self, tx: Tx, now: float) -> tuple[list[str], set[str]]:
        """→ Groups that became complete, and those that had waited for an episode that went on."""
        if not self.pace.seeded:
            self.pace.seed(tx, self.days)
        sql = """SELECT eid, key, model, untagged, last_end FROM t_episodes WHERE state = 'open' AND last_end < ?"""
        idle = [
            eid
            for eid, key, model, untagged, end in tx.all(sql, (now - min(LEAST_UNTAGGED, self.rules.idle_timeout),))
            if end < now - self.pace.idle_after(Agent(key, model), untagged=untagged)
        ]
        ended = sorted(self.episodes.load(tx, idle).values(), key=lambda ep: (ep.last_at, ep.eid))
        for ep in ended:
            ep.state, ep.ended, ep.idle = "done", ep.last_at, True
        held = {ep.grp for ep in ended if ep.grp}
        full = self.groups.join(tx, ended, now)
        columns = ("state", "ended", "idle", "grp")
        tx.update("t_episodes", ("eid",), columns, [(e.eid, e.state, e.ended, e.idle, e.grp) for e in ended])
        self.pins.release(tx, [e.eid for e in ended])
        self.memory.drop([e.eid for e in ended])
        return full, held
