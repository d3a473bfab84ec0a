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
LEAST_UNTAGGED, LEAST_TAGGED = 20.0, 120.0
"""Seconds at least. A tagged run can be ended by its agent, so that there is less need to guess."""
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

    def note(self, agent: Agent, pause: float) -> None:
        """Seconds from the end of a call to the start of the next one of its episode."""
        if agent not in self._pauses:
            self._pauses[agent] = deque(maxlen=PAUSES)
            if len(self._pauses) > AGENTS:
                self._known.pop(self._pauses.popitem(last=False)[0], None)
        self._pauses[agent].append(max(0.0, pause))
        self._known.pop(agent, None)

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
                self.note(Agent(eid.split("/", 1)[0], model), start - ends[eid])
            ends[eid] = max(end, ends.get(eid, 0.0))

    def idle_after(self, agent: Agent, *, untagged: bool) -> float:
        """Seconds without a call after which an episode of this agent is over."""
        least = LEAST_UNTAGGED if untagged else LEAST_TAGGED
        known = self._typical(agent)
        if known is None:
            return min(UNKNOWN, self.limit) if untagged else self.limit
        return min(max(least, FACTOR * known), self.limit)

    def _typical(self, agent: Agent) -> float | None:
        if agent not in self._known:
            pauses = sorted(self._pauses.get(agent, ()))
            if len(pauses) < ENOUGH:
                return None
            self._known[agent] = pauses[min(len(pauses) - 1, math.ceil(QUANTILE * len(pauses)) - 1)]
        return self._known[agent]
