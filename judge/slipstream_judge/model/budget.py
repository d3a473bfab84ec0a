"""What the judge may spend: calls a minute, tokens and dollars a day (UTC). Over budget it waits, and says so.

Calls a minute are this process's. The day's tokens and dollars are kept in the store beside the cache, so that a
restarted judge goes on counting where it was and several copies share one budget (each adds what it spent every few
seconds, so copies may overshoot by that much).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from slipstream.client import AsyncClient
from slipstream.errors import ApiError
from slipstream.settings import JudgeConfig
from slipstream.shared.clock import DAY_S
from slipstream_judge.model.metrics import JudgeMetrics

log = logging.getLogger(__name__)
BUDGET_FIGURES = ("calls", "tokens", "dollars")


class OverBudget(Exception):
    """``seconds``: until there may be budget again."""

    def __init__(self, which: str, seconds: float) -> None:
        super().__init__(f"over budget: judge.{which}; there is more in {seconds:.0f} s")
        self.which = which
        self.seconds = seconds


@dataclass(slots=True)
class Spent:
    day: int
    calls: int = 0
    tokens: int = 0
    dollars: float = 0.0

    def plus(self, calls: int, tokens: int, dollars: float) -> Self:
        return replace(self, calls=self.calls + calls, tokens=self.tokens + tokens, dollars=self.dollars + dollars)

    def figures(self) -> tuple[int, int, float]:
        return self.calls, self.tokens, self.dollars


class Budget:
    """``await take(tokens, deadline)`` before each call, ``spend`` after it.

    ``deadline`` is on ``clock``'s scale (seconds since the epoch).
    """

    def __init__(
        self,
        judge: JudgeConfig,
        metrics: JudgeMetrics,
        client: AsyncClient | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.judge, self.metrics, self.client, self.clock = judge, metrics, client, clock
        self.spent = Spent(self._day())
        self._unsaved = Spent(self._day())
        self._starts: deque[float] = deque(maxlen=judge.calls_per_minute)
        self._reserved = 0
        self.running = 0
        self._said: str | None = None

    def _day(self) -> int:
        return int(self.clock() // DAY_S)

    def _turn(self) -> None:
        """A new day: nothing is spent yet."""
        if self.spent.day != self._day():
            self.spent, self._unsaved = Spent(self._day()), Spent(self._day())

    def wait(self, tokens: int = 0) -> tuple[str, float] | None:
        """Which budget forbids a call of so many tokens now, and for how many seconds; None: go."""
        self._turn()
        now, j = self.clock(), self.judge
        tomorrow = (self._day() + 1) * DAY_S - now
        if j.tokens_per_day is not None and max(tokens, 1) + self._reserved + self.spent.tokens > j.tokens_per_day:
            return "tokens_per_day", tomorrow
        each = self.spent.dollars / self.spent.calls if self.spent.calls else 0.0
        if j.dollars_per_day is not None and self.spent.dollars + each * (self.running + 1) > j.dollars_per_day:
            return "dollars_per_day", tomorrow
        starts = self._starts
        if j.calls_per_minute is not None and len(starts) == j.calls_per_minute and starts[0] + 60 > now:
            return "calls_per_minute", starts[0] + 60 - now
        return None

    def free(self) -> int | None:
        """Calls that may still start within this minute; None: as many as wanted."""
        if self.judge.calls_per_minute is None:
            return None
        now = self.clock()
        return self.judge.calls_per_minute - sum(1 for start in self._starts if start + 60 > now)

    def say(self, blocked: tuple[str, float] | None) -> None:
        """Log (once a change) and show in the metrics that a budget makes us wait."""
        which = blocked[0] if blocked else None
        if which == self._said:
            return
        if self._said is not None:
            self.metrics.waiting.labels(self._said).set(0)
        if blocked is not None:
            self.metrics.waiting.labels(blocked[0]).set(1)
            log.warning("over budget: judge.%s; the judge waits %.0f s", blocked[0], blocked[1])
        else:
            log.info("within budget again; the judge goes on")
        self._said = which

    async def take(self, tokens: int, deadline: float) -> None:
        """Wait until a call of about ``tokens`` tokens may start.

        Raises ``OverBudget`` when that is not before ``deadline``.
        """
        while (blocked := self.wait(tokens)) is not None:
            self.say(blocked)
            if self.clock() + blocked[1] > deadline:
                raise OverBudget(*blocked)
            await asyncio.sleep(min(blocked[1], 1.0))
        self.say(None)
        if self.judge.calls_per_minute is not None:
            self._starts.append(self.clock())
        self._reserved += tokens
        self.running += 1

    def spend(self, reserved: int, tokens: int, dollars: float | None) -> None:
        """After a call, however it went: ``reserved`` as given to ``take``, and what it really took."""
        self._turn()
        self._reserved -= reserved
        self.running -= 1
        self.spent = self.spent.plus(1, tokens, dollars or 0.0)
        self._unsaved = self._unsaved.plus(1, tokens, dollars or 0.0)

    async def sync(self) -> None:
        """Add what was spent to the day's count in the store, and learn what the other copies spent."""
        j = self.judge
        if self.client is None or (j.tokens_per_day is None and j.dollars_per_day is None):
            return
        self._turn()
        mine, self._unsaved = self._unsaved, Spent(self._day())
        key = f"budget-{mine.day}"
        try:
            before = await self.client.cache_get(key) or {}
            calls, tokens = int(before.get("calls", 0)), int(before.get("tokens", 0))
            total = mine.plus(calls, tokens, float(before.get("dollars", 0.0)))
            if mine.calls:
                await self.client.cache_put(key, dict(zip(BUDGET_FIGURES, total.figures(), strict=True)))
        except ApiError as e:
            log.debug("budget not saved: %s", e)
            if mine.day == self._unsaved.day:
                self._unsaved = self._unsaved.plus(*mine.figures())
            return
        if total.day == self.spent.day:
            self.spent = total.plus(*self._unsaved.figures())
