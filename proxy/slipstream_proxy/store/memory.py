"""What the only writer of a database may remember between batches, so that a small batch needs few queries.

Nothing here is true of a shared database: there the store asks each time. After a transaction that failed everything is
forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from slipstream_proxy.store.rows import EpisodeRow


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


class Memory:
    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self.calls = Fresh()
        self.mutations = Fresh()
        self.episodes: dict[str, EpisodeRow] = {}
        """Rows as they are stored."""
        self.orphans: set[str] | None = None
        """Episodes with rewards but no calls; None: not known."""
        self.writers: set[str] = set()

    def keep(self, eps: Iterable[EpisodeRow]) -> None:
        for ep in eps:
            self.episodes.pop(ep.eid, None)
            self.episodes[ep.eid] = ep
        while len(self.episodes) > self._most:
            del self.episodes[next(iter(self.episodes))]

    def drop(self, eids: Collection[str]) -> None:
        for eid in eids:
            self.episodes.pop(eid, None)

    def clear(self) -> None:
        self.calls.forget()
        self.mutations.forget()
        self.episodes.clear()
        self.orphans = None
        self.writers.clear()
