"""What time does: idle episodes end, groups complete by age, leases run out, orphans expire, what was deleted is written over."""

from __future__ import annotations

import logging

from slipstream_proxy.store.batches import BatchQueue
from slipstream_proxy.store.deletion import Deletion
from slipstream_proxy.store.driver import Driver, Tx
from slipstream_proxy.store.groups import GroupTable
from slipstream_proxy.store.memory import Memory
from slipstream_proxy.store.pins import PinTable
from slipstream_proxy.store.protocol import Rules
from slipstream_proxy.store.rewards import RewardTable
from slipstream_proxy.store.rows import EPISODE_COLUMNS, EpisodeRow

log = logging.getLogger("slipstream.store")


class Lifecycle:
    def __init__(
        self,
        db: Driver,
        rules: Rules,
        memory: Memory,
        groups: GroupTable,
        rewards: RewardTable,
        pins: PinTable,
        batches: BatchQueue,
        deletion: Deletion,
    ) -> None:
        self.db = db
        self.rules = rules
        self.memory = memory
        self.groups = groups
        self.rewards = rewards
        self.pins = pins
        self.batches = batches
        self.deletion = deletion

    def sweep(self, now: float) -> None:
        with self.db.write() as tx:
            full = self._end_idle(tx, now)
            self.pins.expire(tx, now - self.rules.idle_timeout)
            complete = {*full, *self.groups.aged(tx, now)}
            self.groups.complete(tx, complete, now)
            self.groups.mark_ready(tx, complete, now)
            self.batches.expire(tx, now)
            expired = self.rewards.expire_orphans(tx, now)
            if self.memory.orphans is not None:
                self.memory.orphans -= expired
        try:
            self.deletion.scrub()
        except Exception:
            # It stays noted, and the next sweep tries again: there may be no room for the copy.
            log.exception("what was deleted could not be written over yet")

    def _end_idle(self, tx: Tx, now: float) -> list[str]:
        """→ Groups that became complete."""
        sql = f"SELECT {EPISODE_COLUMNS} FROM t_episodes WHERE state = 'open' AND last_at < ?"
        ended = [EpisodeRow(*r) for r in tx.all(sql, (now - self.rules.idle_timeout,))]
        for ep in ended:
            ep.state, ep.ended = "done", ep.last_at
        full = self.groups.join(tx, ended, now)
        columns = ("state", "ended", "grp")
        tx.update("t_episodes", ("eid",), columns, [(e.eid, e.state, e.ended, e.grp) for e in ended])
        self.pins.release(tx, [e.eid for e in ended])
        self.memory.drop([e.eid for e in ended])
        return full
