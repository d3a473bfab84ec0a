"""The store over any driver (DuckDB, PostgreSQL): its components, wired.

``store.episodes``, ``store.batches`` and so on have the methods that one would look for there. All methods block and
may be called from any thread. Times are seconds since the epoch and always come from the caller, so that tests can move
the clock. ``store.db`` is its driver: the files, and what differs between databases.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

from slipstream.contract import SqlResult
from slipstream_proxy.log.records import Mutation, mark_of
from slipstream_proxy.store.conversation.calls import CallTable
from slipstream_proxy.store.learning.adapters import AdapterTable, PinTable
from slipstream_proxy.store.learning.groups import GroupTable, Pace
from slipstream_proxy.store.learning.rewards import OutcomeLog, RewardTable
from slipstream_proxy.store.read.behaviour import BehaviourReport
from slipstream_proxy.store.read.curves import CostReport, LearningCurves
from slipstream_proxy.store.read.episodes import EpisodeTable
from slipstream_proxy.store.read.gaps import GapTable
from slipstream_proxy.store.read.groups import GroupPages
from slipstream_proxy.store.read.standing import StandingTable
from slipstream_proxy.store.read.status import StoreStatistics
from slipstream_proxy.store.read.tasks import TaskReport
from slipstream_proxy.store.read.tokens import CallTokenTable
from slipstream_proxy.store.tables import extensions, schema
from slipstream_proxy.store.tables.driver import Driver
from slipstream_proxy.store.tables.extensions import Extension
from slipstream_proxy.store.tables.memory import Memory
from slipstream_proxy.store.tables.rows import name_of
from slipstream_proxy.store.tables.schema import DayTables
from slipstream_proxy.store.tables.small import AuditLog, CacheTable, EventLog
from slipstream_proxy.store.tables.tallies import TallyTable, get_meta, set_meta
from slipstream_proxy.store.values import Erasing, Forgotten, Name, Position, RecordedCall, Rules
from slipstream_proxy.store.write.archive import CallArchive
from slipstream_proxy.store.write.batches import BatchQueue
from slipstream_proxy.store.write.cases import CaseTable
from slipstream_proxy.store.write.claims import InstanceClaim
from slipstream_proxy.store.write.deletion import ALIVE_PREFIX, Deletion
from slipstream_proxy.store.write.ingest import Ingest, Recall, Snapshots, SpoolPositions
from slipstream_proxy.store.write.judge_queue import JudgeQueue
from slipstream_proxy.store.write.learners import LearnerTable
from slipstream_proxy.store.write.lifecycle import Lifecycle, Pruning
from slipstream_proxy.store.write.mutations import MutationReplay
from slipstream_proxy.store.write.quotas import QuotaGrants
from slipstream_proxy.store.write.restore import EpisodeRestore
from slipstream_proxy.store.write.unrewarded import UnrewardedRuns

FORGETTINGS_KEY = "forgotten/"
"""How ``t_meta`` names the count of a proxy's forgettings that the store knows."""


class Store:
    """``instance``: which proxy this is, where several share one database; spool positions are its own."""

    def __init__(self, db: Driver, rules: Rules, *, instance: str = "local") -> None:
        self.db = db
        self.rules = rules
        self.instance = instance
        with db.write() as tx:
            schema.prepare(tx, keyed=db.shared)
        days = DayTables(db)
        db.settle()
        memory, pace = Memory(), Pace(rules.idle_timeout)
        self.tallies = TallyTable(db, days)
        self.tallies.begin()
        self.calls = CallTable(db, days, self.tallies, rules.untrained_kinds)
        self.rewards = RewardTable(db, rules, memory, self.tallies)
        self.standings = StandingTable(db, rules, memory, self.calls)
        self.outcomes = OutcomeLog(db, days, memory)
        self.pins = PinTable(db, self.outcomes)
        self.groups = GroupTable(db, rules)
        self.events = EventLog(db)
        self.audit = AuditLog(db)
        self.cache = CacheTable(db)
        self.cases = CaseTable(db)
        self.adapters = AdapterTable(db, self.events, self.pins)
        self.episodes = EpisodeTable(db, self.calls, self.rewards)
        self.archive = CallArchive(db, self.calls, self.episodes)
        self.batches = BatchQueue(db, rules, self.groups, self.calls, self.rewards)
        self.learners = LearnerTable(db)
        self.quotas = QuotaGrants(db)
        self.judging = JudgeQueue(
            db, rules, memory, self.episodes, self.groups, self.rewards, self.outcomes, self.tallies
        )
        self.statistics = StoreStatistics(db, rules, pace, self.tallies, self.rewards)
        self.reports = Reports(db, self.calls, self.groups, self.rewards, self.outcomes)
        self.deletion = Deletion(db, memory, self.calls, self.episodes, self.groups, self.tallies, instance)
        self._upkeep = threading.Lock()
        """A snapshot and a rewriting of the file, one at a time."""
        self._lifecycle = Lifecycle(
            db,
            rules,
            memory,
            pace,
            days,
            self.episodes,
            self.groups,
            self.rewards,
            self.pins,
            self.batches,
            self.outcomes,
            self.tallies,
            UnrewardedRuns(rules, pace, self.groups, self.tallies),
        )
        self._positions = SpoolPositions(instance, memory)
        self._snapshots = Snapshots(db, days, self._positions)
        self._ingest = self._wire_ingest(memory, pace)
        self.rewards.apply_rules()

    def _wire_ingest(self, memory: Memory, pace: Pace) -> Ingest:
        return Ingest(
            self.db,
            memory,
            self._positions,
            Recall(self.db, memory, self.calls, self.episodes, self.rewards),
            self.calls,
            self.groups,
            self.rewards,
            self.pins,
            self.outcomes,
            self.deletion,
            MutationReplay(
                self.rewards,
                self.judging,
                self.batches,
                self.adapters,
                self.events,
                self.audit,
                self.cache,
                self.cases,
                self.deletion,
                EpisodeRestore(self.rules, memory, self.calls, self.groups),
            ),
            pace,
            self.tallies,
        )

    def extend(self, extension: Extension) -> None:
        """Have a plug-in's tables, and take its records out of the spool. Raises ``StoreError``; then it has none."""
        with self.db.write() as tx:
            extensions.prepare(tx, extension, keyed=self.db.shared)
        self.db.settle()
        self._ingest.mutations.of_plugins.update(extension.mutations)
        self.deletion.extended += [name for name in extension.of_episodes() if name not in self.deletion.extended]

    @property
    def shared(self) -> bool:
        """Other proxies use it too: what they decide is to be read here, not remembered."""
        return self.db.shared

    def ingest(self, items: Sequence[RecordedCall | Mutation], positions: dict[str, Position]) -> None:
        """Apply in order, exactly once: an item whose id is stored already changes nothing. The ingester alone calls
        this. Items and positions are one transaction.
        """
        self._ingest.ingest(items, positions)

    def stand_aside(self, between: Callable[[], None]) -> None:
        """``between`` is called before each record that is ingested."""
        self._ingest.between = between

    @property
    def dropped(self) -> list[Name]:
        """(key, mark) of each call and reward of the last records that came for a forgotten episode."""
        return self._ingest.dropped

    def claim(self, claim: InstanceClaim, known: Collection[str], now: float) -> None:
        """The instance is this start's from now on. Raises ``TwinError``: another folder's is."""
        with self.db.write() as tx:
            claim.take(tx, known, now)
            set_meta(tx, ALIVE_PREFIX + self.instance, repr(now))
        self._positions.claim = claim

    def replay_forgettings(self, marks: Collection[Name], now: float) -> int:
        """Forget the episodes of these (key, mark) that are here: the store is older than they. → How many."""
        counted = str(len(marks))
        if not marks:
            return 0
        with self.db.read() as tx:
            if get_meta(tx, FORGETTINGS_KEY + self.instance) == counted:
                return 0
            there = [name_of(eid) for (eid,) in tx.all("SELECT eid FROM t_episodes WHERE state <> 'deleted'")]
        names = [name for name in there if (name[0], mark_of(name[1])) in marks]
        if names:
            self.forget(names, now)
        with self.db.write() as tx:
            set_meta(tx, FORGETTINGS_KEY + self.instance, counted)
        return len(names)

    def positions(self) -> dict[str, Position]:
        """Spool writer → how far its segments are ingested."""
        with self.db.read() as tx:
            return self._positions.all(tx)

    def forget(self, names: Collection[Name], now: float) -> Forgotten:
        """Forget these episodes: nothing reads them from here on. ``rewrite`` takes them out of the files."""
        return self.deletion.delete(names, now)

    def leave(self) -> None:
        """Say that this proxy stops: its folder may be moved, and started elsewhere at once."""
        with self.db.write() as tx:
            set_meta(tx, ALIVE_PREFIX + self.instance, repr(0.0))

    def rewrite(self) -> list[Erasing]:
        """Rewrite the files, beside reads and writes. → Whom they hold nothing of any more; ``deletion.erased`` is told
        once nothing else (the spool, archives) holds them.

        Raises ``StoreError`` when that can't be done now.
        """
        with self._upkeep:
            waiting = self.deletion.waiting()
            self.deletion.rewrite(waiting)
        return waiting

    def prune(self, now: float, keep: float | None) -> int:
        """Drop small rows that only the recent past needs. → Rows that are gone.

        ``keep``: seconds for the lists of exported episodes.
        """
        return Pruning(self.db, self.rules).prune(now, keep)

    def sweep(self, now: float, sure: float | None = None) -> None:
        """Idle episodes become done, groups complete by age, leases run out, orphans expire.

        ``sure``: the time by which something goes for good, if that is not ``now``.
        """
        self._lifecycle.sweep(now, now if sure is None else sure)

    def release_leases(self, worker: str) -> int:
        """A worker starts again: what it had leased is free at once. → Leases released."""
        with self.db.write() as tx:
            return self.batches.release(tx, worker) + self.judging.release(tx, worker)

    def sql(self, query: str, limit: int, timeout: float) -> SqlResult:
        """One SELECT over the views. Raises ``QueryError`` with one line."""
        return self.db.sql(query, limit, timeout)

    def snapshot(self) -> None:
        """Make the database's own file safe, and read it back. Spool segments before ``positions()`` may go then."""
        with self._upkeep:
            self._snapshots.take()

    def close(self) -> None:
        self.db.close()
        self.calls.known.clear()


class Reports:
    def __init__(
        self, db: Driver, calls: CallTable, groups: GroupTable, rewards: RewardTable, outcomes: OutcomeLog
    ) -> None:
        self.groups = GroupPages(db, groups, rewards)
        self.tokens = CallTokenTable(db, calls)
        self.gaps = GapTable(db)
        self.learning = LearningCurves(db)
        self.costs = CostReport(db, calls.days)
        self.tasks = TaskReport(db)
        self.behaviour = BehaviourReport(db, outcomes)
