"""What the only writer of a database may remember between batches, so that a small batch needs few queries.

Nothing here is true of a shared database: there the store asks each time. After a transaction that failed everything is
forgotten. Figures that cost a look at much are good while nothing is written, and the more one costs, the longer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Generic, NamedTuple, TypeVar

from slipstream_proxy.store.tables.rows import EpisodeRow, RewardRow
from slipstream_proxy.store.tables.tallies import CountedReward
from slipstream_proxy.store.values import Position


class Fresh:
    """Which ids are stored already, told without a query for ids that sort late, as new ones do."""

    def __init__(self, most: int = 50_000) -> None:
        self._most = most
        self._floor: str | None = None
        self._recent: set[str] = set()

    def begin(self, highest: str | None) -> None:
        """``highest``: of all stored ids; what sorts above it is new."""
        self._floor, self._recent = highest or "", set()

    @property
    def ready(self) -> bool:
        return self._floor is not None

    def unsure(self, ids: Iterable[str]) -> list[str]:
        """Those that only the database knows of."""
        return [i for i in ids if self._floor is None or i <= self._floor]

    def stored(self, ids: Iterable[str]) -> list[str]:
        """Those of the other ids that are stored."""
        return [i for i in ids if i in self._recent]

    def add(self, ids: Iterable[str]) -> None:
        if self._floor is None:
            return
        self._recent.update(i for i in ids if i > self._floor)
        if len(self._recent) > self._most:
            ordered = sorted(self._recent)
            self._floor = ordered[len(ordered) // 2]
            self._recent = set(ordered[len(ordered) // 2 + 1 :])

    def forget(self) -> None:
        self._floor, self._recent = None, set()


class NewestRewards:
    """The latest reward of each call, name and source of the episodes that were rewarded last. A run may have a hundred
    thousand small rewards: to read them all with each new one would cost more than the rest.
    """

    def __init__(self, most: int = 50_000) -> None:
        """``most``: episodes and their rewards together."""
        self._most = most
        self._count = 0
        self._of: dict[str, dict[tuple[str | None, str, str], CountedReward]] = {}

    def __contains__(self, eid: str) -> bool:
        return eid in self._of

    def of(self, eid: str) -> list[CountedReward]:
        return list(self._of[eid].values())

    def keep(self, eid: str, rewards: Iterable[CountedReward]) -> None:
        """All that an episode has."""
        self.drop([eid])
        self._of[eid] = {(r.call, r.name, r.source): r for r in rewards}
        self._count += 1 + len(self._of[eid])
        while self._count > self._most and len(self._of) > 1:
            self.drop([next(iter(self._of))])

    def note(self, row: RewardRow) -> None:
        """One more was stored."""
        if (held := self._of.get(row.eid)) is None:
            return
        at = (row.call, row.name, row.source)
        before = held.get(at)
        self._count += before is None
        n = 1 if before is None else before.n + 1
        held[at] = CountedReward(row.eid, row.call, row.name, row.source, row.value, row.seq, n)

    def drop(self, eids: Collection[str]) -> None:
        for eid in eids:
            if (gone := self._of.pop(eid, None)) is not None:
                self._count -= 1 + len(gone)


class Memory:
    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self.calls = Fresh()
        self.mutations = Fresh()
        self.reward_ids = Fresh()
        self.episodes: dict[str, EpisodeRow] = {}
        """Rows as they are stored."""
        self.rewards = NewestRewards()
        self.orphans: set[str] | None = None
        """Episodes with rewards but no calls; None: not known."""
        self.tombstones: set[str] | None = None
        """Identities of forgotten episodes, of each that there is; None: not known, or too many."""
        self.early: set[str] | None = None
        """Episodes that ended before their first call came, and perhaps others; None: not known."""
        self.final: set[str] | None = None
        """Episodes whose end and reward the gate's log has; None: not known."""
        self.positions: dict[str, Position] = {}
        """Where writers of the spool are known to stand."""

    def keep(self, eps: Iterable[EpisodeRow]) -> None:
        for ep in eps:
            self.episodes.pop(ep.eid, None)
            self.episodes[ep.eid] = ep
        while len(self.episodes) > self._most:
            del self.episodes[next(iter(self.episodes))]

    def drop(self, eids: Collection[str]) -> None:
        for eid in eids:
            self.episodes.pop(eid, None)
        self.rewards.drop(eids)

    def bury(self, tombstones: Iterable[str]) -> None:
        """Episodes are forgotten, of which these tombstones stay."""
        if self.tombstones is not None:
            self.tombstones.update(tombstones)

    def clear(self) -> None:
        self.rewards = NewestRewards()
        self.calls.forget()
        self.mutations.forget()
        self.reward_ids.forget()
        self.episodes.clear()
        self.orphans = self.tombstones = self.early = self.final = None
        self.positions.clear()


T = TypeVar("T")
CHEAP_CPU_S = 0.05
"""Seconds of CPU: a figure that costs less is always looked up."""
WAIT_ALLOWANCE_S = 0.5
"""Seconds that another process (a database, a busy machine) may add before they count as well."""
COSTLY_TIME_SHARE = 0.04
"""Share of the time that one costly figure may take."""


class Clocks(NamedTuple):
    """Seconds: of the day's course, and of this thread's work."""

    wall: float
    work: float


def clocks() -> Clocks:
    return Clocks(time.monotonic(), time.thread_time())


class _Found(NamedTuple, Generic[T]):
    value: T
    until: float
    stand: int | None


class ExactFigure(Generic[T]):
    """Looked up once for each stand of the store (``Driver.stand``); always, where others write to it, too."""

    def __init__(self) -> None:
        self._found: tuple[int, T] | None = None

    def get(self, stand: int | None, look: Callable[[], T]) -> T:
        """``stand``: from before the transaction in which ``look`` reads."""
        found = self._found
        if stand is None:
            return look()
        if found is None or found[0] != stand:
            found = self._found = stand, look()
        return found[1]


class PacedFigure(Generic[T]):
    def __init__(self, clock: Callable[[], Clocks] = clocks) -> None:
        self._clock = clock
        self._found: dict[object, _Found[T]] = {}
        self._looking = threading.Lock()

    def get(self, key: object, look: Callable[[], T], stand: int | None = None) -> T:
        """The figure of this key: as it was a moment ago where it is dear, or where somebody else looks just now.

        ``stand``: the store's (``Driver.stand``). What was found in a store that stood the same is still true.
        """
        known = self._found.get(key)
        if known is not None and (self._clock().wall < known.until or (stand is not None and stand == known.stand)):
            return known.value
        if not self._looking.acquire(blocking=known is None):
            assert known is not None
            return known.value
        try:
            before = self._clock()
            value = look()
            after = self._clock()
            cost = max(after.work - before.work, after.wall - before.wall - WAIT_ALLOWANCE_S)
            self._found[key] = _Found(
                value, after.wall + cost / COSTLY_TIME_SHARE if cost > CHEAP_CPU_S else 0.0, stand
            )
            return value
        finally:
            self._looking.release()
