"""Whether training is paused: no batch is handed out then. The store's events say it."""

from __future__ import annotations

import time

from slipstream.contract import Event, Paused
from slipstream_proxy.control.storage.access import StoreAccess

SWITCH_CACHE_S = 1.0
"""Seconds that an answer of the store counts: another proxy may pause too."""


SWITCH_KINDS = ("pause", "resume")


class TrainingSwitch:
    def __init__(self) -> None:
        self._known = Paused(paused=False)
        self._until = 0.0

    async def state(self, access: StoreAccess) -> Paused:
        """Raises ``Problem`` 503 while the store is away."""
        if time.monotonic() > self._until:
            found = await access.ask(access.store.events.latest, SWITCH_KINDS)
            self._known = _state_of(found)
            self._until = time.monotonic() + SWITCH_CACHE_S
        return self._known

    async def set(self, access: StoreAccess, *, paused: bool, by: str, reason: str | None) -> Paused:
        """Again changes nothing."""
        self._until = 0.0
        before = await self.state(access)
        if before.paused is paused:
            return before
        event = Event(kind=SWITCH_KINDS[not paused], at=access.now(), data={"by": by, "reason": reason})
        await access.mutate("event", event.model_dump(mode="json"))
        self._known = _state_of(event)
        self._until = time.monotonic() + SWITCH_CACHE_S
        return self._known


def _state_of(event: Event | None) -> Paused:
    if event is None or event.kind == "resume":
        return Paused(paused=False)
    by, reason = event.data.get("by"), event.data.get("reason")
    return Paused(
        paused=True, since=event.at, by=None if by is None else str(by), reason=None if reason is None else str(reason)
    )
