"""What time does: idle episodes end, groups complete by age, leases run out, orphans expire.

Small rows that only the recent past needs go by age, a few at a time, so that nobody waits for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.shared.clock import DAY_S
from slipstream_proxy.store.learning.adapters import PinTable
from slipstream_proxy.store.learning.groups import Agent, GroupTable, Pace
from slipstream_proxy.store.learning.rewards import OutcomeLog, RewardTable
from slipstream_proxy.store.read.episodes import EpisodeTable
from slipstream_proxy.store.tables.driver import Driver, Tx
from slipstream_proxy.store.tables.memory import Memory
from slipstream_proxy.store.tables.schema import DayTables
from slipstream_proxy.store.tables.tallies import TallyTable
from slipstream_proxy.store.values import Rules
from slipstream_proxy.store.write.batches import BatchQueue
from slipstream_proxy.store.write.unrewarded import UnrewardedRuns

MUTATION_IDS_KEPT_S = 7 * DAY_S
"""Seconds for which ids of mutations are kept. Positions tell what was read; ids guard against reading it twice."""
EXPORT_LISTS_KEPT_S = 365 * DAY_S
"""Seconds for which the lists of exported episodes are kept where episodes are kept for good."""
PINS_KEPT_S = 7 * DAY_S
"""Seconds for which the pin of an episode that has ended is kept, at least."""
ROWS_PER_TRANSACTION = 5_000
"""Rows that go in one transaction."""


class Pruning:
    def __init__(self, db: Driver, rules: Rules) -> None:
        self.db = db
        self.rules = rules

    def prune(self, now: float, keep: float | None) -> int:
        """``keep``: seconds for which episodes are kept, and the lists of those that were exported; None: for good, and
        the lists for ``EXPORT_LISTS_KEPT_S``. Those of archives stay: who is forgotten must go from there, too. →
        Rows that are gone.
        """
        pins = max(PINS_KEPT_S, 2 * self.rules.idle_timeout)
        gone = self._delete("t_seen", "id", "SELECT id FROM t_seen WHERE ts < ?", now - MUTATION_IDS_KEPT_S)
        gone += self._delete("t_stamps", "id", "SELECT id FROM t_stamps WHERE ts < ?", now - MUTATION_IDS_KEPT_S)
        gone += self._delete("t_pins", "eid", "SELECT eid FROM t_pins WHERE NOT active AND ts < ?", now - pins)
        return gone + self._prune_exports(now - (EXPORT_LISTS_KEPT_S if keep is None else keep))

    def _delete(self, table: str, key: str, which: str, before: float) -> int:
        gone = 0
        while True:
            with self.db.write() as tx:
                count = tx.run(f"DELETE FROM {table} WHERE {key} IN ({which} LIMIT {ROWS_PER_TRANSACTION})", (before,))
            gone += count
            if count < ROWS_PER_TRANSACTION:
                return gone

    def _prune_exports(self, before: float) -> int:
        with self.db.write() as tx:
            old = "SELECT id FROM t_exports WHERE ts < ? AND format <> 'archive'"
            gone = tx.run(f"DELETE FROM t_exported WHERE export IN ({old})", (before,))
            tx.run("DELETE FROM t_exports WHERE ts < ? AND format <> 'archive'", (before,))
        return gone


RARE_SEARCH_INTERVAL_S = 30.0
"""Seconds between searches for what is rare and costs a look at every episode."""
OPEN_EPISODES_INTERVAL_S = 5.0
"""Seconds after which open episodes are looked through again, at the latest."""


class _OpenRow(NamedTuple):
    eid: str
    key: str
    model: str
    untagged: bool
    last_end: float


class _Rest(NamedTuple):
    """Nothing is to be done between these times (seconds since the epoch) while the store stands so."""

    stand: int
    since: float
    until: float


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
    unrewarded: UnrewardedRuns
    _swept: float = -RARE_SEARCH_INTERVAL_S
    _searched: float = -RARE_SEARCH_INTERVAL_S
    _looked: float = -RARE_SEARCH_INTERVAL_S
    _due: float = 0.0
    """When the first open episode may be over."""
    _first_over: float = 0.0
    """The same, as long as nothing is written, and how the store stood then."""
    _looked_stand: int | None = None
    _rest: _Rest | None = None

    def sweep(self, now: float, sure: float) -> None:
        """``sure``: by which rewards and ends go that no call came to."""
        rest = self._rest
        if rest is not None and rest.stand == self.db.stand() and rest.since <= now < rest.until:
            return
        with self.db.write() as tx:
            stand = self.db.stand()
            full, held = self._end_idle(tx, now)
            if not self._swept <= now < self._swept + RARE_SEARCH_INTERVAL_S:
                self._swept = now
                self.pins.expire(tx, now - self.rules.idle_timeout)
                tx.run("DELETE FROM t_early WHERE ts < ?", (sure - self.rules.orphan_ttl,))
                self.tallies.compact(tx)
                left, unlocked = self.unrewarded.leave(tx, now)
                self.memory.drop(left)
                held |= unlocked
            aged, expired = self.groups.next_aged(tx), self.batches.next_expired(tx)
            complete = {*full, *(self.groups.aged(tx, now) if aged < now else ())}
            self.groups.complete(tx, complete, now)
            self.groups.mark_ready(tx, complete | held, now)
            if expired < now:
                self.batches.expire(tx, now)
            self._expire_orphans(tx, now, sure)
        # What this sweep itself has changed makes another one necessary: the store stands otherwise then.
        if stand is not None and self.memory.orphans == set():
            over = self._first_over if stand == self._looked_stand else self._due
            self._rest = _Rest(stand, now, min(self._swept + RARE_SEARCH_INTERVAL_S, over, aged, expired))

    def _expire_orphans(self, tx: Tx, now: float, sure: float) -> None:
        """What is known to have no orphans is not searched for them."""
        if self.memory.orphans is None and not self.db.shared:
            self.memory.orphans = self.rewards.orphans(tx)
        orphans = self.memory.orphans
        if orphans is not None:
            orphans -= self.rewards.expire_orphans(tx, sure, list(orphans)) if orphans else set()
        elif not self._searched <= now < self._searched + RARE_SEARCH_INTERVAL_S:
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
        self.outcomes.write(tx, now, ended=ended)
        if any(ep.reward is not None for ep in ended):
            self.memory.final = None  # this transaction may fail
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
        self._looked, self._looked_stand = now, self.db.stand()
        self._first_over = math.inf
        idle = []
        for row in tx.all("SELECT eid, key, model, untagged, last_end FROM t_episodes WHERE state = 'open'"):
            ep = _OpenRow(*row)
            over = ep.last_end + self.pace.idle_after(Agent(ep.key, ep.model), now, untagged=ep.untagged)
            if over < now:
                idle.append(ep.eid)
            else:
                self._first_over = min(self._first_over, over)
        self._due = min(self._first_over, now + min(OPEN_EPISODES_INTERVAL_S, self.rules.idle_timeout))
        return idle
