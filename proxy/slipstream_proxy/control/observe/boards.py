"""Who works: the sidecars and their last signs, the judge, and whether training is paused.

Sidecars are processes of their own: only requests show that they run.

While training is paused no batch is handed out. The store's events say which it is. It may have hours, wait for an idle
engine and have a quota a day, too.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Literal, NamedTuple

from slipstream import contract as c
from slipstream.contract import Event, Paused
from slipstream.settings.trainer import ScheduleConfig, midnight
from slipstream.shared.processes.process import cpu_seconds
from slipstream_proxy.control.storage.access import StoreAccess
from slipstream_proxy.control.storage.spool_reader import Item
from slipstream_proxy.store.read.pages import LabelQueue
from slipstream_proxy.store.values import RecordedCall
from slipstream_proxy.store.write.judge_queue import JudgeQueue

Role = Literal["judge", "trainer"]
BUSY_CPU_SHARE = 0.01
"""Of a CPU: a process with work to do takes more, also while a GPU computes."""
SIDECAR_TIMEOUT_S = 45.0
"""Seconds without a request after which a sidecar is away. Idle, it asks every few seconds; at work it has a lease."""


class SidecarActivity:
    """Times are monotonic. In memory only: after a restart every sidecar gets ``SIDECAR_TIMEOUT_S`` seconds to show
    up.
    """

    def __init__(self) -> None:
        self.started = time.monotonic()
        self._last: dict[Role, float] = {}
        self._computed: dict[Role, tuple[int, float, float]] = {}
        """Its process id, its CPU time, and when that had grown."""
        self.pace: tuple[int, float] | None = None
        """Groups that the trainer asked for last, and seconds after which it takes fewer."""

    def seen(self, role: Role) -> None:
        self._last[role] = time.monotonic()

    def still(self, role: Role, pid: int | None) -> float:
        """Seconds for which its process has computed next to nothing, as far as that was looked at, since it last asked
        for work.
        """
        spent, now = cpu_seconds(pid) if pid else None, time.monotonic()
        if spent is None or pid is None:
            return 0.0
        before = self._computed.get(role)
        if before is None or before[0] != pid or spent - before[1] > 0.05 + BUSY_CPU_SHARE * (now - before[2]):
            before = self._computed[role] = pid, spent, now
        return min(now - before[2], self.silence(role))

    def ever(self, role: Role) -> bool:
        return role in self._last

    def silence(self, role: Role) -> float:
        """Seconds since its last request, or since the control plane started."""
        return time.monotonic() - self._last.get(role, self.started)

    def away(self, role: Role) -> bool:
        return self.silence(role) > SIDECAR_TIMEOUT_S


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

    def standing(self, store: JudgeQueue, labels: LabelQueue, now: float) -> c.JudgingStatus:
        """For ``GET status``. Reads the store."""
        judges = self.judges(now)
        backlog = self.backlog(store, now)
        rate = sum(j.groups_per_minute for j in judges) / 60
        behind = backlog.groups / rate if rate > 0 else None
        if now >= self._looked + AGREEMENT_EVERY:
            self._looked = now
            name = judges[-1].names[0] if judges else self.name
            self._agreements, self._people = store.agreements(name), labels.agreement()
        agent, human = (self._agreements.get(who, c.JudgeAgreement()) for who in ("agent", "human"))
        return c.JudgingStatus(
            judges=judges, backlog=backlog, seconds_behind=behind, agent=agent, human=human, people=self._people
        )


SWITCH_KINDS = ("pause", "resume")
SWITCH_CACHE_S = 1.0
"""Seconds that an answer of the store counts: another proxy may pause too."""


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


class ScheduleState(NamedTuple):
    """Whether the trainer gets batches; if not, why, and when it does again at the earliest."""

    open: bool = True
    why: str = ""
    at: float = 0.0


TRAINED_EVENT_KINDS = ("step", "undone", "skipped")
"""Kinds of events that say how long a batch was computed."""


class TrainingSchedule:
    """When the trainer works (``trainer.schedule``). ``busy``: whether the engines have a request just now."""

    def __init__(self, settings: ScheduleConfig, busy: Callable[[], Awaitable[bool]]) -> None:
        self.settings, self.busy = settings, busy
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
        if not self.settings.is_set:
            return True
        if not (await self.state(access)).open:
            self._shut = True
            return False
        if self._shut:
            await access.ask(access.store.batches.keep_waiting)
            self._shut = False
        return True

    async def state(self, access: StoreAccess) -> ScheduleState:
        if self.settings.is_set and time.monotonic() > self._until:
            self._known = await self._look(access, access.now())
            self._until = time.monotonic() + SWITCH_CACHE_S
        return self._known

    async def _look(self, access: StoreAccess, now: float) -> ScheduleState:
        s = self.settings
        if (at := s.opens(now)) > now:
            return ScheduleState(False, f"its hours are {s.hours}", at)
        if s.minutes is not None:
            events = await access.ask(access.store.events.within, TRAINED_EVENT_KINDS, midnight(now, 0), None, 100_000)
            spent = sum(max(0.0, took) for e in events if isinstance(took := e.data.get("seconds"), int | float)) / 60
            if spent >= s.minutes:
                text = f"{spent:.0f} of {s.minutes:g} minutes of today are spent"
                return ScheduleState(False, text, s.opens(midnight(now, 1)))
        if s.idle is not None:
            self._busy_at = now if await self.busy() else min(self._busy_at, now)
            if now - self._busy_at < s.idle:
                return ScheduleState(False, f"the engine is not idle for {s.idle:g} s", self._busy_at + s.idle)
        return ScheduleState()


def _state_of(event: Event | None) -> Paused:
    if event is None or event.kind == "resume":
        return Paused(paused=False)
    by, reason = event.data.get("by"), event.data.get("reason")
    return Paused(
        paused=True, since=event.at, by=None if by is None else str(by), reason=None if reason is None else str(reason)
    )
