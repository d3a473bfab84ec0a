"""The copies of the judge: what they say of themselves, and how far the judge agrees with people."""

from __future__ import annotations

from collections.abc import Callable, Collection

from slipstream import contract as c
from slipstream_proxy.store.store import Store
from slipstream_proxy.store.write.judge_queue import JudgeQueue

COPY_TIMEOUT_S = 60.0
"""Seconds after which a copy that reports no more is taken for gone."""

AGREEMENT_EVERY = 60.0
"""Seconds between looks at how far the judge agrees with agents and people: it reads all scores."""

UNSAID_FAILURE_TEXT = "it failed; what it said may hold what was forgotten since (its own log has it)"


class JudgeBoard:
    """Which copies of the judge are at work, and how far the judge is behind the agents."""

    def __init__(self, name: str, names: Collection[str] = ()) -> None:
        """``name``: ``judge.name``, for as long as no copy has reported. ``names``: what else the judge writes."""
        self.name = name
        self.written = {name, *names}
        """Reward names that the judge writes here, or has written since the start: no agent may use them."""
        self._reports: dict[str, c.JudgeStatus] = {}
        self._forgotten: set[int] = set()
        """Hashes of errors that copies reported before something was forgotten: they may hold it, and come again."""
        self._agreements: dict[str, c.JudgeAgreement] = {}
        self.read_people: Callable[[Store], c.LabelAgreement | None] = lambda _: None
        """How far people agree with each other: a plug-in knows."""
        self._people: c.LabelAgreement | None = None
        self._looked = float("-inf")

    def report(self, report: c.JudgeReport, now: float) -> None:
        self.written.update(report.names)
        if hash(report.last_error) in self._forgotten:
            report = report.model_copy(update={"last_error": UNSAID_FAILURE_TEXT})
        self._reports[report.worker] = c.JudgeStatus(**report.model_dump(), at=now)

    def forget(self) -> None:
        """Say no more what the copies said when they failed."""
        for worker, known in self._reports.items():
            if known.last_error not in (None, UNSAID_FAILURE_TEXT):
                self._forgotten.add(hash(known.last_error))
                self._reports[worker] = known.model_copy(update={"last_error": UNSAID_FAILURE_TEXT})

    def judges(self, now: float) -> list[c.JudgeStatus]:
        """The copies that reported lately."""
        self._reports = {worker: r for worker, r in self._reports.items() if r.at > now - COPY_TIMEOUT_S}
        return sorted(self._reports.values(), key=lambda r: r.worker)

    def budget(self, now: float) -> tuple[str, float] | None:
        """The setting whose budget every copy waits for, and the seconds left. None: one of them may work."""
        waits = [(j.waits_for, j.waits_until) for j in self.judges(now)]
        spent = [(setting, until - now) for setting, until in waits if setting and until is not None and until > now]
        return min(spent, key=lambda s: s[1]) if spent and len(spent) == len(waits) else None

    def error(self, now: float) -> str | None:
        """Why the copies score nothing just now; None: one of them scored its latest group."""
        errors = [j.last_error for j in self.judges(now)]
        return errors[-1] if errors and all(errors) else None

    def chance(self, now: float) -> c.JudgeAgreement | None:
        """How far the votes of a copy agree whose scores are no more than chance; None: there is no such copy."""
        return next((j.between_votes for j in self.judges(now) if j.by_chance), None)

    def backlog(self, store: JudgeQueue, now: float) -> c.JudgeBacklog:
        judges = self.judges(now)
        names = judges[-1].names if judges else [self.name]
        return store.backlog(names, singles=any(j.singles for j in judges) or not judges, now=now)

    def standing(self, store: Store, now: float) -> c.JudgingStatus:
        """For ``GET status``. Reads the store."""
        judges = self.judges(now)
        backlog = self.backlog(store.judging, now)
        rate = sum(j.groups_per_minute for j in judges) / 60
        behind = backlog.groups / rate if rate > 0 else None
        if now >= self._looked + AGREEMENT_EVERY:
            self._looked = now
            name = judges[-1].names[0] if judges else self.name
            self._agreements, self._people = store.judging.agreements(name), self.read_people(store)
        agent, human = (self._agreements.get(who, c.JudgeAgreement()) for who in ("agent", "human"))
        return c.JudgingStatus(
            judges=judges, backlog=backlog, seconds_behind=behind, agent=agent, human=human, people=self._people
        )
