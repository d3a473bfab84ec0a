"""In which order an episode's calls stand: by the clock that acknowledged them, and by which goes on with which."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from slipstream_proxy.log.records import CallHead
from slipstream_proxy.log.spool import BOOT_ID, NO_BOOT
from slipstream_proxy.store.tables.driver import Tx

_MEASURED = 30.0
"""Seconds for which a measurement of the store's clock is used."""


class Stamp(NamedTuple):
    """When a call or a reward was acknowledged."""

    call: str
    """Its id, or the reward's."""
    boot: str
    """The machine, and which start of it; empty: not known."""
    tick: float
    """By the machine's monotonic clock, in seconds."""
    at: float
    """By the store's clock, in seconds since the epoch."""


class StoreClock:
    """The database's clock, without a question for each call."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._until = float("-inf")

    def stamp(self, tx: Tx, head: CallHead) -> Stamp:
        """The stamp of a call that is about to be stored."""
        return self.read(tx, head.id, head.boot, head.tick, head.at + head.seconds)

    def read(self, tx: Tx, id: str, boot: str, tick: float, at: float) -> Stamp:
        """The stamp of a record that was written then, ``at`` by its machine's wall clock. If the machine was restarted
        since, only the wall clock counts.
        """
        if boot != BOOT_ID or not tick:
            return Stamp(id, boot, tick, at)
        if time.monotonic() > self._until:
            before = time.monotonic()
            ((now,),) = tx.all("SELECT extract(epoch FROM clock_timestamp())::float8")
            after = time.monotonic()
            self._ahead, self._until = float(now) - (before + after) / 2, after + _MEASURED
        return Stamp(id, boot, tick, tick + self._ahead)


def place(
    stamps: Sequence[Stamp], new: Stamp, extends: str | None, extended_by: Callable[[set[str]], Collection[str]]
) -> int:
    """Before which of the calls that are stored ``new`` stands; their number: behind all of them.

    ``extends``: the stored call that it goes on with. ``extended_by`` says which of some stored calls go on with it.
    """
    low, high = 0, len(stamps)
    if not new.boot:  # imported, or recorded by an earlier version: it stands where it came
        return high
    for i, stamp in enumerate(stamps if new.boot != NO_BOOT else ()):
        if stamp.boot == new.boot and stamp.tick <= new.tick:
            low = i + 1
        elif stamp.boot == new.boot:
            high = min(high, i)
    for i in range(low, high):
        if stamps[i].call == extends:
            low = i + 1
    if low >= high:
        return low
    later = extended_by({s.call for s in stamps[low:high]})
    high = next((i for i in range(low, high) if stamps[i].call in later), high)
    return next((i for i in range(low, high) if stamps[i].at > new.at), high)
