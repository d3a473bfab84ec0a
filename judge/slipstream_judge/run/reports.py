"""How this copy of the judge stands, for ``status``: rate, cost, spread, agreement, budget."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import fmean

from slipstream.contract import JudgeAgreement, JudgeReport, JudgeSpent
from slipstream.settings import JudgeConfig
from slipstream_judge.compare.group import Judged
from slipstream_judge.model.budget import Budget
from slipstream_judge.trust.consistency import Consistency

RATE_WINDOW_S = 300.0
"""Seconds over which the rate is measured."""
RECENT_GROUPS = 200
"""Groups that the means are over."""


class JudgeReporter:
    """Counts what happens to groups. ``worker`` and ``names``: as in the leases."""

    def __init__(
        self, judge: JudgeConfig, worker: str, names: list[str], budget: Budget, clock: Callable[[], float] = time.time
    ) -> None:
        self.judge, self.worker, self.names, self.budget, self.clock = judge, worker, names, budget, clock
        self.started = clock()
        self.scored = self.failed = self.postponed = self.lost = 0
        self.last_error: str | None = None
        """Why groups are not scored just now; None once one is."""
        self.consistency = Consistency()
        self._ends: deque[float] = deque(maxlen=10_000)
        self._seconds: deque[float] = deque(maxlen=RECENT_GROUPS)
        self._costs: deque[float | None] = deque(maxlen=RECENT_GROUPS)
        self._spreads: deque[float] = deque(maxlen=RECENT_GROUPS)

    def score(self, seconds: float, judged: Judged | None, *, kept: bool) -> None:
        """A group is scored, ``seconds`` after it was leased. ``kept``: the proxy took the scores."""
        self.scored += kept
        self.lost += not kept
        if kept:
            self.last_error = None
            self._ends.append(self.clock())
            self._seconds.append(seconds)
        if judged is not None:
            self._costs.append(judged.usage.cost)
            spreads = [s for score in judged.scores if isinstance(s := score.meta.get("spread"), float)]
            if self.judge.votes > 1 and spreads:
                self._spreads.append(fmean(spreads))

    def fail(self, why: str, *, postponed: bool) -> None:
        self.failed += not postponed
        self.postponed += postponed
        self.last_error = why[:500]

    def per_minute(self) -> float:
        """Groups scored a minute, over the last minutes or since the start."""
        now = self.clock()
        while self._ends and self._ends[0] < now - RATE_WINDOW_S:
            self._ends.popleft()
        return 60 * len(self._ends) / max(1.0, min(RATE_WINDOW_S, now - self.started))

    def report(self, working: int, audits: deque[float]) -> JudgeReport:
        """``audits``: the rank correlations with the second model."""
        now, j, spent = self.clock(), self.judge, self.budget.spent
        blocked = self.budget.wait() if j.model is not None else None
        costs = [c for c in self._costs if c is not None]
        return JudgeReport(
            worker=self.worker,
            names=self.names,
            model=j.model,
            function=j.function,
            singles=j.singles != "off",
            concurrency=j.concurrency,
            working=working,
            groups_per_minute=self.per_minute(),
            seconds_per_group=fmean(self._seconds) if self._seconds else None,
            cost_per_group=fmean(costs) if costs and len(costs) == len(self._costs) else None,
            spread=fmean(self._spreads) if self._spreads else None,
            scored=self.scored,
            failed=self.failed,
            postponed=self.postponed,
            lost=self.lost,
            last_error=self.last_error,
            waits_for=f"judge.{blocked[0]}" if blocked else None,
            waits_until=now + blocked[1] if blocked else None,
            spent=JudgeSpent(
                calls=spent.calls,
                tokens=spent.tokens,
                dollars=spent.dollars,
                tokens_limit=j.tokens_per_day,
                dollars_limit=j.dollars_per_day,
            ),
            between_votes=self.consistency.agreement(),
            by_chance=self.consistency.by_chance,
            audit=JudgeAgreement(value=fmean(audits) if audits else None, pairs=len(audits)),
        )
