"""``slipstream judge``: leases groups, scores them, posts the scores. As many copies as wanted, anywhere.

A group is leased for longer than judging it can take, so no lease is renewed: a judge that dies leaves groups that
come back by themselves. A judge that fails says so (``ScoresIn.failed``), and the proxy hands the group out again
later or parks it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Awaitable, Callable

from slipstream.client import AsyncClient
from slipstream.config import Config
from slipstream.contract import PLAIN_ID_PATTERN, Event, Group, GroupLeaseIn, RewardIn, ScoresIn, Split
from slipstream.errors import ApiError, ConfigError, Unavailable
from slipstream.settings.judge import is_own
from slipstream.shared.backoff import Backoff, rest
from slipstream.shared.log import brief
from slipstream.tenants import known_tenants, tenant_config
from slipstream_judge.compare.next_turn import turns_of
from slipstream_judge.compare.panel import Panel, PanelOutcome, within
from slipstream_judge.compare.process import graded_calls
from slipstream_judge.compare.slots import JudgeSlots
from slipstream_judge.loop import run_loop
from slipstream_judge.model.budget import OverBudget
from slipstream_judge.model.cache import CONCURRENT_LOOKUPS, judged
from slipstream_judge.model.llm import CALL_RETRIES, JudgeFailed, litellm
from slipstream_judge.model.metrics import JudgeMetrics
from slipstream_judge.run.reports import JudgeReporter
from slipstream_judge.trust.audit import Auditor

log = logging.getLogger(__name__)
IDLE_INTERVALS_S = (0.1, 2.0)
"""Seconds between looks for work: at first, and after many looks in vain."""
SYNC_INTERVAL_S, TENANTS_LOOK_S = 5.0, 2.0
FAILURES_BEFORE_SLOWER, SLOWER_PAUSE_S = 8, (1.0, 60.0)
"""Failures in a row after which groups are judged one at a time, and the seconds between two of them, which grow. A
judge whose answers are of no use costs as much as a good one.
"""
HELD_GROUP_INTERVAL_S = 20.0
"""Seconds until a group is looked at again whose scores are held."""
STOP_GRACE_S = 10.0
"""Seconds that running groups get when the judge is told to stop."""


def lease_seconds(config: Config) -> float:
    """Long enough for an answer and its repair, with the retries of both.

    Votes run side by side, so their number does not count.
    """
    calls = 2 * (CALL_RETRIES + 1)
    return min(3600.0, max(60.0, config.judge.timeout * calls + 30))


def worker_name() -> str:
    host = "".join(c if PLAIN_ID_PATTERN.match(c) else "-" for c in socket.gethostname())[:60]
    return f"judge-{host}-{os.getpid()}-{secrets.token_hex(3)}"


class JudgeWorker:
    def __init__(self, config: Config, client: AsyncClient, slots: JudgeSlots | None = None) -> None:
        """``slots``: those that tenants share."""
        self.config, self.client = config, client
        self.name, self.metrics = worker_name(), JudgeMetrics()
        self.slots = slots or JudgeSlots(config.judge.concurrency)
        self.panel = Panel(config, self.metrics, client, slots=self.slots.tenant())
        self.auditor = Auditor(config.judge, self.panel.audit, self.metrics)
        self.reporter = JudgeReporter(config.judge, self.name, self.panel.names, self.panel.budget)
        self.seconds = lease_seconds(config)
        self.lane = asyncio.Semaphore(CONCURRENT_LOOKUPS)
        self.tasks: set[asyncio.Task[None]] = set()
        self.ahead = max(1, min(32, config.judge.concurrency // 2))
        self._away = False
        self.failures = 0
        """Groups in a row."""
        self._slower = Backoff(*SLOWER_PAUSE_S)
        self._next = 0.0
        """When the next group may be leased, after failures (monotonic)."""

    async def run(self, stop: asyncio.Event) -> int:
        """Judge until ``stop`` is set. Returns the exit code."""
        sync = asyncio.create_task(self._sync())
        idle = Backoff(*IDLE_INTERVALS_S, factor=1.5)
        await self.panel.budget.sync()
        try:
            while not stop.is_set():
                pause = await self._round(idle.pause)
                if pause:
                    idle.next()
                    await rest(pause, stop)
                else:
                    idle.reset()
            return 0
        finally:
            sync.cancel()
            await self._finish()

    async def _round(self, idle: float) -> float:
        """Lease what there is room for. Returns the seconds to wait until the next look; 0 after work was found."""
        blocked = self.panel.budget.wait() if self.panel.model else None
        self.panel.budget.say(blocked)
        if blocked is not None:
            return min(1.0, blocked[1])
        room = self._room()
        if self.panel.llm is not None and self.panel.llm.out_of_quota is not None:
            if self.tasks or (pause := self.panel.llm.quota_pause()) > 0:
                return min(1.0, pause if not self.tasks else SLOWER_PAUSE_S[0] / 2)
            room = 1
        if self.failures >= FAILURES_BEFORE_SLOWER:
            if self.tasks or time.monotonic() < self._next:
                return SLOWER_PAUSE_S[0] / 2
            room = 1
        if room <= 0:
            if self.tasks:
                await asyncio.wait(self.tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0.5)
            return 0.0 if self.tasks else IDLE_INTERVALS_S[0]
        who = {"worker": self.name, "names": self.panel.names, "singles": self.config.judge.singles != "off"}
        wanted = GroupLeaseIn(**who, seconds=self.seconds, limit=min(64, room), form="deltas")
        began = time.time()
        try:
            lease = await self.client.lease_groups(wanted)
        except ApiError as e:
            if not self._away:
                log.warning("no work from the proxy: %s", e)
            self._away = True
            return idle if isinstance(e, Unavailable) else IDLE_INTERVALS_S[1]
        if self._away:
            log.info("the proxy answers again")
            self._away = False
        if lease is None or not lease.groups:
            return idle
        for group in lease.groups:
            task = asyncio.create_task(self._judge(lease.lease, group, began + self.seconds * 0.95))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        return 0.0

    def _room(self) -> int:
        """Groups to lease now: what is worked on and a few more, and none that the budget would make wait.

        A group that waits here grows old, while the proxy would hand out a newer one later.
        """
        room = self.slots.share() + self.ahead - len(self.tasks)
        room = room if room > self.ahead // 4 else 0
        free = self.panel.budget.free() if self.panel.model else None
        if free is not None:
            waiting = max(0, len(self.tasks) - self.panel.budget.running)
            room = min(room, max(1, free // self.config.judge.votes) - waiting)
        return room

    async def _judge(self, lease: str, group: Group, deadline: float) -> None:
        judged.set((group.id, lease))
        with self.metrics.working.track_inprogress():
            began = time.time()
            outcome, answer = await self._score(lease, group, deadline)
            if outcome is not None and outcome.judged is not None:
                self.reporter.consistency.add(outcome.judged)
                answer = self._doubted(answer)
            if answer.failed is None:  # before its scores, which make it ready to be trained on
                await self._grade_calls(group, deadline)
            kept = await self._post(group, answer, deadline)
            self._count(group, answer, kept=kept)
            if answer.retry_after is None:
                self._note(failed=answer.failed is not None)
            if answer.failed is None:
                self.reporter.score(time.time() - began, outcome.judged if outcome else None, kept=kept)
            else:
                self.reporter.fail(answer.failed, postponed=answer.retry_after is not None)
            if outcome is not None and outcome.judged is not None and kept:
                await self._hear(group, deadline)
                self.auditor.compare(group, outcome.judged.scores)
                await self._audit(group, outcome, deadline)

    def _doubted(self, answer: ScoresIn) -> ScoresIn:
        """The scores of the agents' own engine are held until they are known to be more than chance.

        The group comes again, and its votes are in the cache then.
        """
        doubt = self.reporter.consistency.doubt() if is_own(self.config.judge.model) else None
        return (
            answer if doubt is None else ScoresIn(lease=answer.lease, failed=doubt, retry_after=HELD_GROUP_INTERVAL_S)
        )

    def _note(self, *, failed: bool) -> None:
        """A judge that only fails goes on slowly, until it scores a group again."""
        self.failures = self.failures + 1 if failed else 0
        if self.failures < FAILURES_BEFORE_SLOWER:
            self._slower.reset()
            return
        if self.failures == FAILURES_BEFORE_SLOWER:
            log.error(
                "the judge failed on %d groups in a row: one at a time is tried, after growing pauses",
                FAILURES_BEFORE_SLOWER,
            )
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._slower.next()

    async def _score(self, lease: str, group: Group, deadline: float) -> tuple[PanelOutcome | None, ScoresIn]:
        left = deadline - time.time()
        try:
            outcome = await within(self.panel, group, left, deadline - 1)
            return outcome, ScoresIn(lease=lease, scores=outcome.scores)
        except OverBudget as e:
            return None, ScoresIn(lease=lease, failed=str(e), retry_after=min(e.seconds, 3600.0))
        except JudgeFailed as e:
            return None, ScoresIn(lease=lease, failed=str(e)[:2000], retry_after=e.retry_after)
        except TimeoutError:
            return None, ScoresIn(lease=lease, failed=f"judging took longer than {left:.0f} s")
        except Exception as e:
            log.exception("judging group %s failed", group.id)
            return None, ScoresIn(lease=lease, failed=f"{type(e).__name__}: {e}"[:2000])

    async def _post(self, group: Group, answer: ScoresIn, deadline: float) -> bool:
        try:
            await self._insist(lambda: self.client.post_scores(group.id, answer), deadline)
        except ApiError as e:
            log.warning("the proxy did not take the scores of group %s: %s", group.id, e)
            return False
        return True

    async def _insist(self, post: Callable[[], Awaitable[object]], deadline: float) -> None:
        """``post`` is idempotent: it is tried until the proxy takes it or says no, or the lease is over.

        Raises ``ApiError``.
        """
        backoff = Backoff(0.2, 5.0)
        while True:
            try:
                async with self.lane:
                    await post()
                return
            except ApiError as e:
                if not (isinstance(e, Unavailable) or e.status >= 500) or time.time() + backoff.pause > deadline:
                    raise
            await backoff.sleep()

    def _count(self, group: Group, answer: ScoresIn, *, kept: bool) -> None:
        if answer.failed is None:
            self.metrics.groups.labels("scored" if kept else "lost").inc()
            log.info("scored group %s: %s episodes", group.id, len(answer.scores))
        else:
            self.metrics.groups.labels("failed" if answer.retry_after is None else "postponed").inc()
            log.warning("group %s is not scored (attempt %s): %s", group.id, group.attempts + 1, brief(answer.failed))

    async def _grade_calls(self, group: Group, deadline: float) -> None:
        """Each call's own reward, of all runs that are still there or of none: what fails here fails no score."""
        grader = self.panel.calls
        if grader is None or group.split is not Split.TRAIN:
            return
        found: list[tuple[str, RewardIn]] = []
        rubric, name = self.panel.rubrics.of(group.task), self.config.judge.name
        try:
            for one in group.episodes:
                if calls := graded_calls(one):
                    for call, grade in (await grader.grade(calls, rubric, deadline)).items():
                        said = RewardIn(name=name, value=grade, source="judge", call=call, key=f"grade-{call}")
                        found.append((one.episode.id, said))
            gone: set[str] = set()
            for episode, said in found:
                if episode not in gone and not await self._grade(group, episode, said, deadline):
                    gone.add(episode)
        except (JudgeFailed, OverBudget, ApiError) as e:
            log.warning("the calls of group %s get no grades: %s", group.id, brief(str(e)))

    async def _grade(self, group: Group, episode: str, grade: RewardIn, deadline: float) -> bool:
        """→ Whether the run is still there: it may have been forgotten since the group was leased."""
        try:
            await self._insist(lambda: self.client.add_reward(episode, grade, of_key=group.key), deadline)
        except ApiError as e:
            if e.status == 404:
                return False
            raise
        return True

    async def _hear(self, group: Group, deadline: float) -> None:
        """Where a user's next turn corrects a reply: its words are feedback. What fails here fails no score."""
        listener = self.panel.next_turn
        if listener is None or group.split is not Split.TRAIN:
            return
        for turn in turns_of(group, self.config.models):
            try:
                said = await listener.hear(turn, deadline)
                if said is not None:
                    await self.client.add_feedback(turn.episode, said, of_key=group.key)
            except (JudgeFailed, OverBudget, ApiError) as e:
                log.warning("what a user said after call %s is not heard: %s", turn.call, brief(str(e)))
                return

    async def _audit(self, group: Group, outcome: PanelOutcome, deadline: float) -> None:
        assert outcome.judged is not None
        found = await self.auditor.audit(group, outcome.judged.scores, deadline)
        if found is not None:
            models = {"model": self.config.judge.model, "audit_model": self.config.judge.audit_model}
            data = {"group": group.id, "agreement": found, **models}
            with contextlib.suppress(ApiError):
                await self.client.post_event(Event(kind="judge", data=data))

    async def _sync(self) -> None:
        while True:
            await self._report()
            await asyncio.sleep(SYNC_INTERVAL_S)
            await self.panel.budget.sync()

    async def _report(self) -> None:
        """Tell the proxy how this copy stands. A proxy that is away, or older than the report, is no reason to stop."""
        report = self.reporter.report(len(self.tasks), self.auditor.recent)
        try:
            backlog = await self.client.report_judge(report)
        except ApiError as e:
            log.debug("the proxy did not take the report: %s", e)
            return
        self.metrics.queue.set(backlog.groups)
        self.metrics.queue_age.set(backlog.oldest_seconds or 0.0)
        rate = report.groups_per_minute / 60
        self.metrics.lag.set(backlog.groups / rate if rate else backlog.oldest_seconds or 0.0)

    async def _finish(self) -> None:
        """Let running groups end for a moment; what is not done by then goes back at once."""
        if self.tasks:
            _, late = await asyncio.wait(self.tasks, timeout=STOP_GRACE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
            if late:
                with contextlib.suppress(ApiError):
                    await self.client.release(self.name)
        await self.panel.budget.sync()


async def run(config: Config, client: AsyncClient, stop: asyncio.Event, slots: JudgeSlots | None = None) -> int:
    """Judge with this configuration until ``stop`` is set. Raises ``ConfigError`` at the start."""
    worker = JudgeWorker(config, client, slots)
    server = None
    if config.judge.metrics_port is not None and not config.tenant:
        port, server = worker.metrics.serve(config.judge.metrics_port, config.judge.metrics_host)
        log.info("metrics on http://%s:%s/metrics", config.judge.metrics_host, port)
    if config.judge.model is not None:
        await asyncio.to_thread(litellm)
    who = " and ".join(x for x in (config.judge.model, config.judge.function) if x)
    log.info("judging with %s, %s groups at once, as %s", who, config.judge.concurrency, worker.name)
    try:
        return await worker.run(stop)
    finally:
        worker.slots.tenants.remove(worker.panel.slots)
        if server is not None:
            server.shutdown()


async def run_tenants(config: Config, url: str | None, key: str | None, stop: asyncio.Event, slots: JudgeSlots) -> None:
    """A worker for each tenant that has a judge, as long as it is there. What fails in one costs that one alone."""
    running: dict[str, tuple[asyncio.Event, asyncio.Task[None]]] = {}
    while not await rest(TENANTS_LOOK_S if running or config.tenants else SYNC_INTERVAL_S, stop):
        now, names = await asyncio.to_thread(known_tenants, config)
        for name in names - running.keys():
            end = asyncio.Event()
            running[name] = end, asyncio.create_task(_tend(now, name, url, key, end, slots), name=f"tenant {name}")
        for name in running.keys() - names:
            running.pop(name)[0].set()
    for end, _ in running.values():
        end.set()
    await asyncio.gather(*(task for _, task in running.values()))


async def _tend(
    config: Config, name: str, url: str | None, key: str | None, stop: asyncio.Event, slots: JudgeSlots
) -> None:
    pause = Backoff(*SLOWER_PAUSE_S)
    while not stop.is_set():
        try:
            own = tenant_config(config, name)
            if own.judge.model is None and own.judge.function is None:
                return
            async with AsyncClient(url, key, tenant=name) as client:
                await run(own, client, stop, slots)
        except ConfigError as e:
            log.error("tenant %s is not judged: %s", name, e)
            return
        except Exception:
            log.exception("tenant %s: its judge failed, and is made anew", name)
            await pause.sleep(stop)


def main(config: Config, url: str | None, key: str | None) -> int:
    """The command. Ends well on SIGTERM and SIGINT."""

    async def go() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        slots = JudgeSlots(config.judge.concurrency)
        tenants = asyncio.create_task(run_tenants(config, url, key, stop, slots))
        try:
            if config.judge.model is None and config.judge.function is None:  # tenants alone have judges
                await stop.wait()
                return 0
            async with AsyncClient(url, key) as client:
                return await run(config, client, stop, slots)
        finally:
            stop.set()
            await tenants

    return run_loop(go())
