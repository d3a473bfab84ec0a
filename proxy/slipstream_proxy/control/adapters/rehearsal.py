"""What a new version has to pass before it goes on trial or live: nothing, unless a plug-in puts something here."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from slipstream import contract as c


class StepLeases:
    """Groups that a judge scores for a rehearsal, and that no store has."""

    def lease(self, wanted: c.GroupLeaseIn, now: float) -> c.GroupLease | None:
        return None

    def holds(self, group: str, lease: str) -> bool:
        return False

    def misfit(self, group: str, body: c.ScoresIn) -> str | None:
        return None

    def scored(self, group: str, body: c.ScoresIn) -> bool:
        return False


class Rehearsal:
    """As the swapper asks it. This one holds nothing up."""

    judging = StepLeases()
    running: str | None = None
    """The version that is rehearsed now."""

    def agents_came(self) -> None:
        """A call of an agent comes: give way."""

    def ready(self, adapter: c.Adapter) -> bool:
        """Whether it may go on trial or live, as far as this is concerned."""
        return True

    def hidden(self) -> AbstractSet[str]:
        """Versions that are not ready."""
        return frozenset()

    def begin(self, adapter: c.Adapter) -> None:
        """The engines have it."""

    def waits(self, adapter: c.Adapter) -> bool:
        """Whether a version is not to be loaded now: another one of its model is rehearsed."""
        return False

    def holds(self, adapter: c.Adapter) -> bool:
        """Whether there is nothing to do about it but to wait: it is being rehearsed, in engines that have it."""
        return False


class RehearsalSlot:
    """Where a plug-in puts its rehearsal."""

    def __init__(self) -> None:
        self.current = Rehearsal()
        self.watchers: list[Callable[[], None]] = []
        """Who uses the engine's idle time besides."""

    def agents_came(self) -> None:
        """A call of an agent comes: all give way."""
        self.current.agents_came()
        for give_way in self.watchers:
            give_way()

    def hidden(self) -> AbstractSet[str]:
        """Versions that are not ready, whoever says so."""
        return self.current.hidden()
