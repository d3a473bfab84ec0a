"""How long agents pause between calls: what tells a run that is over from one that waits for a slow tool."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import NamedTuple

from slipstream_proxy.store.days import DayTables
from slipstream_proxy.store.driver import Tx

QUANTILE = 0.98
FACTOR = 4.0
"""An episode is over after this many times the ``QUANTILE`` of its agent's pauses."""
ENOUGH = 8
"""Pauses that must be known before they count."""
UNKNOWN = 60.0
"""Seconds for an untagged episode while its agent's pace is not known."""
LEAST = 20.0
"""Seconds at least."""
WELL_KNOWN, LEAST_TAGGED = 100, 120.0
"""Seconds at least for a tagged episode until so many pauses are known. It has nothing but a slow tool to wait for,
and a tool that is seldom slow is met late."""
LONGEST_FACTOR = 1.5
"""A tagged episode waits this many times the longest pause of the last ``MEMORY`` seconds, too."""
MEMORY = 3600.0
PAUSES = 512
AGENTS = 4096
SEED = 4000
"""Calls that a start reads to learn the pace again."""


class Agent(NamedTuple):
    """Calls of one key and model have one pace."""

    key: str
    model: str


class Pace:
    """``limit``: ``episodes.idle_timeout``, which nothing exceeds."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.seeded = False
        self._pauses: OrderedDict[Agent, deque[float]] = OrderedDict()
        self._known: dict[Agent, float] = {}
        self._long: dict[Agent, deque[tuple[float, float]]] = {}
        """(when it ended, its seconds) of the pauses that ``LEAST`` does not cover and that no later one surpassed."""

    def note(self, agent: Agent, pause: float, at: float) -> None:
        """Seconds from the end of a call to the start of the next one of its episode.

        ``at``: that start, in seconds since the epoch.
        """
        if agent not in self._pauses:
            self._pauses[agent] = deque(maxlen=PAUSES)
            if len(self._pauses) > AGENTS:
                gone = self._pauses.popitem(last=False)[0]
                self._known.pop(gone, None)
                self._long.pop(gone, None)
        self._pauses[agent].append(max(0.0, pause))
        self._known.pop(agent, None)
        if pause * LONGEST_FACTOR > LEAST:
            long = self._long.setdefault(agent, deque(maxlen=PAUSES))
            while long and long[0][0] <= at - MEMORY:
                long.popleft()
            while long and long[-1][1] <= pause:
                long.pop()
            long.append((at, pause))

    def seed(self, tx: Tx, days: DayTables) -> None:
        """Learn from the newest calls that are stored."""
        self.seeded = True
        for table in days.tables(tx)[-1:]:
            sql = f"SELECT eid, coalesce(trained, model), ts, ts + seconds FROM {table} ORDER BY ts DESC LIMIT ?"
            self._learn(reversed(tx.all(sql, (SEED,))))

    def _learn(self, calls: Iterable[tuple[str, str, float, float]]) -> None:
        ends: dict[str, float] = {}
        for eid, model, start, end in calls:
            if eid in ends:
                self.note(Agent(eid.split("/", 1)[0], model), start - ends[eid], start)
            ends[eid] = max(end, ends.get(eid, 0.0))

    def idle_after(self, agent: Agent, now: float, *, untagged: bool) -> float:
        """Seconds without a call after which an episode of this agent is over."""
        known = self._typical(agent)
        if known is None:
            return min(UNKNOWN, self.limit) if untagged else self.limit
        least = LEAST
        if not untagged:
            least = max(LEAST, LONGEST_FACTOR * self._longest(agent, now))
            if len(self._pauses[agent]) < WELL_KNOWN:
                least = max(least, LEAST_TAGGED)
        return min(max(least, FACTOR * known), self.limit)

    def _longest(self, agent: Agent, now: float) -> float:
        """Of the pauses that ended in the last ``MEMORY`` seconds; 0 where all were short.

        Changes nothing, as another thread may note pauses meanwhile.
        """
        recent = (pause for at, pause in tuple(self._long.get(agent, ())) if at > now - MEMORY)
        return next(recent, 0.0)  # each one is longer than those after it

    def _typical(self, agent: Agent) -> float | None:
        if agent not in self._known:
            pauses = sorted(self._pauses.get(agent, ()))
            if len(pauses) < ENOUGH:
                return None
            self._known[agent] = pauses[min(len(pauses) - 1, math.ceil(QUANTILE * len(pauses)) - 1)]
        return self._known[agent]
