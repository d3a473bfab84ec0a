"""When the trainer may work: its hours, an idle engine, minutes a day (``trainer.schedule``), and tokens a day."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from slipstream.contract import Event
from slipstream.settings.trainer import ScheduleConfig, midnight
from slipstream.shared.clock import DAY_S
from slipstream_proxy.control.observe.training_switch import SWITCH_CACHE_S
from slipstream_proxy.control.storage.access import StoreAccess
from slipstream_proxy.control.storage.spool_reader import Item
from slipstream_proxy.store.values import RecordedCall


class ScheduleState(NamedTuple):
    """Whether the trainer gets batches; if not, why, and when it does again at the earliest."""

    open: bool = True
    why: str = ""
    at: float = 0.0


TRAINED_EVENT_KINDS = ("step", "undone", "skipped")
"""Kinds of events that say how long a batch was computed."""


def _total(events: Sequence[Event], figure: str) -> float:
    return sum(max(0.0, value) for e in events if isinstance(value := e.data.get(figure), int | float))


class TrainingSchedule:
    """When the trainer works (``trainer.schedule``). ``busy``: whether the engines have a request just now."""

    def __init__(
        self, settings: ScheduleConfig, busy: Callable[[], Awaitable[bool]], tokens_per_day: int | None = None
    ) -> None:
        """``tokens_per_day``: ``quota.trained_tokens_per_day``."""
        self.settings, self.busy, self.tokens_per_day = settings, busy, tokens_per_day
        self.is_set = settings.is_set or tokens_per_day is not None
        self._known = ScheduleState()
        self._until = 0.0
        self._busy_at = time.time()
        """As far as is known: of the time before this start nothing is."""
        self._shut = True

    def saw(self, items: Sequence[Item]) -> None:
        """The store has these calls. What went to another API, or was imported, was not in the engine."""
        calls = [item.head for item in items if isinstance(item, RecordedCall) and not item.head.external]
        self._busy_at = max([self._busy_at, *(head.at + head.seconds for head in calls)])

    async def admits(self, access: StoreAccess) -> bool:
        """Whether the trainer may have a batch. When that begins, what has waited is kept, however old it becomes."""
        if not self.is_set:
            return True
        if not (await self.state(access)).open:
            self._shut = True
            return False
        if self._shut:
            await access.ask(access.store.batches.keep_waiting)
            self._shut = False
        return True

    async def state(self, access: StoreAccess) -> ScheduleState:
        if self.is_set and time.monotonic() > self._until:
            self._known = await self._look(access, access.now())
            self._until = time.monotonic() + SWITCH_CACHE_S
        return self._known

    async def _look(self, access: StoreAccess, now: float) -> ScheduleState:
        s = self.settings
        if (at := s.opens(now)) > now:
            return ScheduleState(False, f"its hours are {s.hours}", at)
        if s.minutes is not None:
            events = await access.ask(access.store.events.within, TRAINED_EVENT_KINDS, midnight(now, 0), None, 100_000)
            spent = _total(events, "seconds") / 60
            if spent >= s.minutes:
                text = f"{spent:.0f} of {s.minutes:g} minutes of today are spent"
                return ScheduleState(False, text, s.opens(midnight(now, 1)))
        if self.tokens_per_day is not None:
            day = now - now % DAY_S
            tokens = _total(await access.ask(access.store.events.within, ("step",), day, None, 100_000), "tokens")
            if tokens >= self.tokens_per_day:
                text = f"{tokens:,.0f} tokens are trained on today, and quota.trained_tokens_per_day is "
                return ScheduleState(False, f"{text}{self.tokens_per_day:,}", s.opens(day + DAY_S))
        if s.idle is not None:
            self._busy_at = now if await self.busy() else min(self._busy_at, now)
            if now - self._busy_at < s.idle:
                return ScheduleState(False, f"the engine is not idle for {s.idle:g} s", self._busy_at + s.idle)
        return ScheduleState()
