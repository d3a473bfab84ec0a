"""Training can be paused: no batch is handed out until it goes on. The store's events say which it is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from slipstream.contract import Event, Paused

if TYPE_CHECKING:
    from slipstream_proxy.control.deps import Deps

KINDS = ("pause", "resume")
REMEMBERED = 1.0
"""Seconds that an answer of the store counts: another proxy may pause too."""


class TrainingSwitch:
    def __init__(self) -> None:
        self._known = Paused(paused=False)
        self._until = 0.0

    async def state(self, deps: Deps) -> Paused:
        """Raises ``Problem`` 503 while the store is away."""
        if time.monotonic() > self._until:
            found = await deps.ask(deps.store.events.latest, KINDS)
            self._known = _state_of(found)
            self._until = time.monotonic() + REMEMBERED
        return self._known

    async def set(self, deps: Deps, *, paused: bool, by: str, reason: str | None) -> Paused:
        """Again changes nothing."""
        self._until = 0.0
        before = await self.state(deps)
        if before.paused is paused:
            return before
        event = Event(kind=KINDS[not paused], at=deps.now(), data={"by": by, "reason": reason})
        await deps.mutate("event", event.model_dump(mode="json"))
        self._known = _state_of(event)
        self._until = time.monotonic() + REMEMBERED
        return self._known


def _state_of(event: Event | None) -> Paused:
    if event is None or event.kind == "resume":
        return Paused(paused=False)
    by, reason = event.data.get("by"), event.data.get("reason")
    return Paused(
        paused=True, since=event.at, by=None if by is None else str(by), reason=None if reason is None else str(reason)
    )
