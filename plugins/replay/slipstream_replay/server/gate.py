"""Before anybody meets a new version: it is asked the steps of recorded cases beside the accepted one.

``gate.mode = "replay"``. The version is in the engines and in no arm. It passes, is refused with its worst cases, or
stays without a verdict (``gate.replay.undecided``). What is known is kept after each few cases, so a restart goes on.

Its requests use the engine's idle time: they wait while agents' calls run, and give way when one comes.

A judge compares replies through its own queue: a step is a group that it leases, and no score of it is stored.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from slipstream import contract as c
from slipstream.contract import AdapterState, ReplayPair, ReplayQuestion, ReplaySet, ReplayVerdict
from slipstream.engines.engine import EngineAway
from slipstream.errors import ConfigError
from slipstream.settings.gate import AUTOMATIC_CASE_SETS, GateReplayConfig
from slipstream.shared.backoff import rest
from slipstream.shared.clock import DAY_S
from slipstream.shared.functions import load_function
from slipstream_proxy.control.adapters.changes import event
from slipstream_proxy.control.adapters.fleet import Fleet
from slipstream_proxy.control.adapters.journal import ConcurrentChange
from slipstream_proxy.control.adapters.lifecycle import AdapterLifecycle
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.adapters.rehearsal import Rehearsal, StepLeases
from slipstream_proxy.control.engines.pool import EnginePool
from slipstream_proxy.control.engines.replica import EngineReplica
from slipstream_proxy.control.gate.detector import BettingDetector
from slipstream_proxy.control.observe.audit import decided
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import end, in_thread
from slipstream_proxy.control.storage.access import StoreAccess
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.log.ids import new_id
from slipstream_proxy.store.values import EpisodeFilter, Name
from slipstream_replay.beside import groups_of_step, note
from slipstream_replay.comparison import JUDGE_MEASURE, CasePair, Detect, PairedTest, Questions, checked, groups_of
from slipstream_replay.report import LIMIT_TEXTS, beside, worst_step
from slipstream_replay.server.case_keeper import CaseKeeper, case_change, rank, sample
from slipstream_replay.steps import ReplayBudget, ReplayCase, Replayer, Side, case_of
from slipstream_siblings.idle import BUSY_AGENTS_TIMEOUT_S, IdleTurns, at_once, load_of

log = logging.getLogger(__name__)
S = AdapterState
detect: Detect = functools.partial(BettingDetector, lump=1.0, rate=0.0, shifts=False)

# --- the judge's queue

CASE_ATTEMPTS = 3
REPLAY_PREFIX = "replay-"


@dataclass(slots=True)
class _Pending:
    group: c.Group
    done: asyncio.Future[list[c.Score]]
    lease: str = ""
    until: float = 0.0


class StepJudging(StepLeases):
    """Steps that wait for the judge."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Pending] = {}
        self._turn = False

    async def case(self, case: ReplayCase) -> None:
        """Have each step scored. Raises ``ValueError`` where the judge gives none."""
        for step in case.steps:
            for group in groups_of_step(case, step, REPLAY_PREFIX + new_id()):
                pending = self._waiting[group.id] = _Pending(group, asyncio.get_running_loop().create_future())
                try:
                    note(step, group, await pending.done)
                finally:
                    del self._waiting[group.id]

    def lease(self, wanted: c.GroupLeaseIn, now: float) -> c.GroupLease | None:
        """At every other request of a judge: agents' own groups have the rest."""
        self._turn = not self._turn
        free = [p for p in self._waiting.values() if p.until < now and not p.done.done()][: wanted.limit]
        if not free or not self._turn:
            return None
        lease, until = REPLAY_PREFIX + new_id(), now + wanted.seconds
        for pending in free:
            pending.lease, pending.until = lease, until
        return c.GroupLease(lease=lease, until=until, groups=[p.group for p in free])

    def holds(self, group: str, lease: str) -> bool:
        pending = self._waiting.get(group)
        return pending is not None and pending.lease == lease

    def misfit(self, group: str, body: c.ScoresIn) -> str | None:
        """An episode that is scored and is none of the group's."""
        ids = {e.episode.id for e in self._waiting[group].group.episodes}
        return next((s.episode for s in body.scores if s.episode not in ids), None)

    def scored(self, group: str, body: c.ScoresIn) -> bool:
        """False: the lease is lost."""
        if not self.holds(group, body.lease):
            return False
        pending = self._waiting[group]
        if body.failed is None:
            pending.done.set_result(list(body.scores))
        elif body.retry_after is not None:
            pending.until = time.time() + body.retry_after
        else:
            pending.until = 0.0
            pending.group.attempts += 1
            if pending.group.attempts >= CASE_ATTEMPTS:
                pending.done.set_exception(ValueError(f"the judge gave no scores: {body.failed}"[:300]))
        return True


# --- a version's replay

CONCURRENT_CASES = 4
"""Cases that are asked at once. They count in their own order."""
KEEP_EVERY = 5.0
"""Seconds after which what is known is kept."""
OTHER_PROXY_TIMEOUT_S = 60.0
"""Seconds after which another proxy's replay is taken for dead."""
WORST_CASES_SHOWN = 3
"""Cases of a question that are shown."""
KEPT_RESULT_VERSIONS = 20
"""Newest versions of a model whose worst cases are kept."""
MOST_VALUES = 64
"""Values of a tag above which it is no stratum: it names runs."""
ROLLBACKS_LOOKED_AT = 10
"""Newest rolled back versions whose runs are looked at."""


class _Place(NamedTuple):
    key: str
    episode: str
    reward: float | None
    groups: list[str]


@dataclass(slots=True)
class ReplayProgress:
    """What is known of one version. ``sets``: name → version and the places of its cases."""

    control: str
    sets: dict[str, tuple[int, list[_Place]]]
    questions: dict[str, Questions]
    budget: ReplayBudget
    began: float
    round: int = 0
    """Of all cases; a later one only where the evidence leans towards "worse"."""
    seen: int = 0
    """Cases of all sets together, in their order, in this round."""
    missing: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    answered: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    exact: list[int] = field(default_factory=lambda: [0, 0])
    """Steps that were asked by token ids, and all."""
    pairs: list[tuple[str, str, int, str, float, float, int, int]] = field(default_factory=list)
    """(set, question, round, case, candidate, control, step, steps), as they counted."""
    worst: dict[tuple[str, str], list[CasePair]] = field(default_factory=lambda: defaultdict(list))
    """Of each set and question, those that were compared since the start."""
    stopped: str | None = None
    """The budget that was spent."""
    failed: str | None = None
    """Why nothing can be compared."""
    lacking: list[str] = field(default_factory=list)
    """Sets of the settings that are not there, or empty."""

    def order(self) -> list[tuple[Name, list[str]]]:
        """Each case once, with the sets that have it."""
        found: dict[Name, list[str]] = defaultdict(list)
        for name, (_, places) in self.sets.items():
            for place in places:
                found[place.key, place.episode].append(name)
        return sorted(found.items(), key=lambda one: rank(*one[0]))

    def take(self, names: Sequence[str], case: ReplayCase | None) -> None:
        """The next case; None: it is there no more."""
        self.seen += 1
        for name in names:
            if case is None or case.error is not None or not case.steps:
                self.missing[name] += self.round == 0 and case is not None and bool(case.steps)
                continue
            self.answered[name] += self.round == 0
            for question, pair in self.questions[name].see(case).items():
                scores = pair.candidate, pair.control
                self.pairs.append((name, question, self.round, pair.place, *scores, pair.step, pair.steps))
                found = self.worst[name, question]
                found.append(pair)
                found.sort(key=lambda p: p.difference)
                del found[WORST_CASES_SHOWN:]
        if case is not None and case.error is None:
            self.exact[0] += sum(s.exact for s in case.steps)
            self.exact[1] += len(case.steps)

    def tests(self) -> list[tuple[str, PairedTest]]:
        return [(name, test) for name, questions in self.questions.items() for test in questions.asked]

    def worse(self) -> bool:
        return any(q.worse for q in self.questions.values())

    def again(self) -> bool:
        """Begin another round, where more samples could show that it is worse. → Did it?"""
        if not any(questions.leans for questions in self.questions.values()):
            return False
        self._again()
        return True

    def _again(self) -> None:
        for questions in self.questions.values():
            questions.again()
        self.round, self.seen = self.round + 1, 0

    def verdict(self, total: int, *, over: bool) -> ReplayVerdict:
        """``over``: nothing more is asked."""
        outcome, reason = "running", f"replayed on {self.seen} of {total} cases"
        if empty := ", ".join(name for name in self.lacking if _is_own(name)):
            reason += f"; {empty} had no cases when it began, so it will give no verdict"
        if self.round:
            reason += f", round {self.round + 1}, because it leaned towards worse"
        bad = [(name, t) for name, t in self.tests() if t.verdict == "worse"]
        if bad:
            name, test = min(bad, key=lambda one: one[1].difference)
            outcome = "refused"
            reason = (
                f"worse than {self.control} on recorded steps: {test.question} {test.difference:+.3f} over "
                f"{len(test.pairs)} cases of {name}"
            )
        elif over:
            short = self.short()
            outcome = "undecided" if short else "passed"
            reason = f"no verdict of the replay: {short}" if short else f"not shown to be worse than {self.control}"
            reason += f" ({self.stopped})" if self.stopped else ""
        return ReplayVerdict(
            outcome=outcome,
            reason=reason,
            control=self.control,
            sets=[
                ReplaySet(name=n, version=v, cases=self.answered[n], missing=self.missing[n])
                for n, (v, _) in self.sets.items()
            ],
            questions=[_told(name, test) for name, test in self.tests()],
            tokens=self.budget.spent,
            exact=self.exact[0] / self.exact[1] if self.exact[1] else None,
            began=self.began,
        )

    def short(self) -> str | None:
        """Why there is no verdict. A regression set is to be passed as a whole; an automatic one may be small."""
        lacking = ", ".join(name for name in self.lacking if _is_own(name))
        if self.failed or lacking or not self.sets:
            return self.failed or (f"{lacking} had no cases when it began" if lacking else "there are no cases yet")
        whys = {}
        for name, questions in self.questions.items():
            why = questions.short(self.missing[name])
            left = len(self.sets[name][1]) - self.answered[name] - self.missing[name]
            if why is None and self.stopped and left and _is_own(name):
                why = f"{left} of its cases were not begun"
            if why is not None:
                whys[name] = why
        own = {n: w for n, w in whys.items() if _is_own(n)}
        if not own and len(whys) < len(self.questions):
            return None
        return "; ".join(f"{name}: {why}" for name, why in (own or whys).items())

    def dump(self) -> JsonObject:
        return {
            "control": self.control, "began": self.began, "round": self.round, "seen": self.seen,
            "tokens": self.budget.spent,
            "sets": {n: v for n, (v, _) in self.sets.items()}, "missing": dict(self.missing),
            "answered": dict(self.answered), "exact": self.exact, "pairs": [list(p) for p in self.pairs],
        }  # fmt: skip

    def load(self, kept: JsonObject) -> None:
        """Go on after what was kept of the same sets."""
        for name, question, number, case, candidate, control, step, steps in kept["pairs"]:
            if number > self.round:
                self._again()
            pair = CasePair(case.rpartition("/")[2], candidate, control, step, None, steps, case)
            self.questions[name].tests[question].see(pair)
        while kept["round"] > self.round:  # it has begun, and nothing was compared
            self._again()
        self.pairs = [tuple(p) for p in kept["pairs"]]
        self.seen, self.exact, self.budget.spent = kept["seen"], kept["exact"], kept["tokens"]
        self.missing.update(kept["missing"])
        self.answered.update(kept["answered"])


def _is_own(name: str) -> bool:
    """Whether people fill the set."""
    return not name.startswith("auto-")


def _told(name: str, test: PairedTest) -> ReplayQuestion:
    count = len(test.pairs)
    return ReplayQuestion(
        set=name,
        question=test.question,
        verdict=test.verdict,
        cases=count,
        candidate=round(sum(p.candidate for p in test.pairs) / count, 4),
        control=round(sum(p.control for p in test.pairs) / count, 4),
        visible=round(test.visible, 4),
        evidence=round(min(test.evidence, 1e9), 4),
        threshold=1.0 / test.alpha,
    )


def result_set(adapter: str) -> str:
    """The set of cases that has a version's worst steps."""
    return (REPLAY_PREFIX + re.sub(r"[^A-Za-z0-9._-]", "-", adapter))[:128]


def shown_step(pair: CasePair, of: str, question: str, names: tuple[str, str]) -> c.EpisodeDetail:
    """A case's worst step as an episode of two calls: the same prompt with a reply of each side."""
    assert pair.case is not None
    step, *replies = worst_step(pair)
    bare = {"prompt_ids": None, "completion_ids": None, "logprobs": None, "prefix": None, "extends": None}
    calls = []
    for n, (name, message) in enumerate(zip(names, replies, strict=True)):
        own = {"id": f"{step.call.id}-{n}"[:128], "number": n, "adapter": name, "reply": [message]}
        calls.append(step.call.model_copy(update=bare | own))
    figures = {"candidate": f"{pair.candidate:.4f}", "control": f"{pair.control:.4f}", "call": str(pair.step)}
    tags = {f"replay.{k}": v for k, v in (figures | {"set": of, "question": question}).items()}
    update = {"call_list": calls, "calls": 2, "tags": pair.case.episode.tags | tags, "rewards": [], "batches": []}
    return pair.case.episode.model_copy(update=update | {"trained_adapters": [], "lineage": [], "group": None})


def pair_shown(detail: c.EpisodeDetail) -> ReplayPair:
    """``shown_step`` as people read it."""
    candidate, control = detail.call_list[:2]
    tags = detail.tags
    prompt, theirs, ours = beside(candidate.messages, candidate.reply[0], control.reply[0])
    return ReplayPair(
        set=tags["replay.set"],
        episode=detail.id,
        key=detail.key,
        call=int(tags["replay.call"]),
        question=tags["replay.question"],
        candidate=float(tags["replay.candidate"]),
        control=float(tags["replay.control"]),
        prompt=prompt,
        candidate_reply=theirs,
        control_reply=ours,
    )


class ReplayGate(Rehearsal):
    def __init__(
        self, access: StoreAccess, cases: CaseKeeper, registry: AdapterRegistry, lifecycle: AdapterLifecycle,
        fleet: Fleet, engines: EnginePool,
    ) -> None:  # fmt: skip
        self.access, self.cases, self.registry, self.lifecycle = access, cases, registry, lifecycle
        self.fleet, self.engines = fleet, engines
        self.judging: StepJudging = StepJudging()
        self.running: str | None = None
        """The version that is replayed now."""
        self._turns: IdleTurns | None = None
        self._engine: EngineReplica | None = None
        """The one that is asked."""
        self._loaded: set[str] = set()
        """Versions that the engines have and that wait for their replay."""
        self._wake = asyncio.Event()
        self._me = new_id()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def settings(self) -> GateReplayConfig:
        return self.registry.config.gate.replay

    def start(self) -> None:
        if self.registry.config.gate.mode == "replay":
            self._tasks = [asyncio.create_task(self._run(), name="replay")]

    async def stop(self) -> None:
        await end(self._tasks)

    def agents_came(self) -> None:
        if self._turns is not None:
            self._turns.agents_came()

    # what the swapper asks

    def ready(self, adapter: c.Adapter) -> bool:
        """Whether it may go on trial or live, as far as its replay is concerned."""
        if self.registry.config.gate.mode != "replay" or adapter.forced:
            return True
        outcome = adapter.replay.outcome if adapter.replay is not None else "running"
        return outcome == "passed" or (outcome == "undecided" and self.settings.undecided == "try")

    def hidden(self) -> set[str]:
        """Versions that are not ready."""
        return {a.name for a in self.registry.in_state(S.LOADING) if not self.ready(a)}

    def begin(self, adapter: c.Adapter) -> None:
        """The engines have it."""
        if adapter.replay is None or adapter.replay.outcome == "running":
            self._loaded.add(adapter.name)
            self._wake.set()

    def waits(self, adapter: c.Adapter) -> bool:
        """Whether a version is not to be loaded now: another one of its model is replayed."""
        now = self.running and self.registry.items.get(self.running)
        return bool(now) and now.model == adapter.model and now.name != adapter.name  # type: ignore[union-attr]

    def holds(self, adapter: c.Adapter) -> bool:
        """Whether there is nothing to do about it but to wait: it is being replayed, in engines that have it."""
        return adapter.name == self.running and adapter.name in self.engines.loaded()

    # the task

    async def _run(self) -> None:
        while True:
            await rest(10.0, self._wake)
            self._wake.clear()
            for name in sorted(self._loaded):
                try:
                    await self._replay(name)
                except ConcurrentChange:
                    continue
                except (Problem, EngineAway) as e:
                    log.warning("the replay of %s waits: %s", name, e)
                except Exception:
                    log.exception("the replay of %s failed; it is tried again", name)
            if self._loaded:
                await asyncio.sleep(1.0)
                self._wake.set()

    def _waiting(self, name: str) -> c.Adapter | None:
        adapter = self.registry.items.get(name)
        return adapter if adapter is not None and adapter.state == S.LOADING and not self.ready(adapter) else None

    async def _replay(self, name: str) -> None:
        """To its end, or until it is another's: a person decided, or the control is another one."""
        adapter = self._waiting(name)
        if adapter is None or (adapter.replay is not None and adapter.replay.outcome == "undecided"):
            self._loaded.discard(name)
            return
        kept = await self.access.ask(self.access.store.cache.get, f"replay/{name}") or {}
        other = kept.get("by") != self._me and time.time() - kept.get("at", 0.0) < OTHER_PROXY_TIMEOUT_S
        if self.access.stores.shared and kept and other:
            return
        turns = IdleTurns(
            lambda: load_of(self.engines, self._engine),
            self.engines.awake,
            BUSY_AGENTS_TIMEOUT_S,
            lambda: at_once(self.engines),
        )
        self.running, self._turns = name, turns
        watch = asyncio.create_task(self._turns.watch(), name="idle time")
        self._publish(replays=True)
        try:
            try:
                progress = await self._prepare(adapter, kept)
            except ConfigError as e:  # there is no such function
                budget = ReplayBudget(self.settings.tokens)
                progress = ReplayProgress(self.registry.accepted(adapter.model), {}, {}, budget, time.time())
                progress.failed = str(e)[:500]
            self._show(name, progress)
            left = progress.began + self.settings.seconds - time.time()
            try:
                async with asyncio.timeout(max(left, 0.0)):
                    if not await self._ask(name, progress):
                        return
            except ConfigError as e:  # the user's function
                progress.failed = str(e)[:500]
            except TimeoutError:
                progress.stopped = f"the budget of {self.settings.seconds:g} seconds is spent"
            await self._decide(name, progress)
        finally:
            await end([watch])
            self.running = self._turns = self._engine = None
            self._publish(replays=False)
            self.lifecycle.journal.wake.set()

    def _publish(self, *, replays: bool) -> None:
        """Data planes tell of each call as it comes: a replay gives way at once, and not when it sees the load."""
        self.engines.replays = replays
        self.engines.changed()

    async def _prepare(self, adapter: c.Adapter, kept: JsonObject) -> ReplayProgress:
        settings, model = self.settings, adapter.model
        control = self.registry.accepted(model)
        again = bool(kept) and kept.get("control") == control and not kept.get("ended")
        sets: dict[str, tuple[int, list[_Place]]] = {}
        lacking: list[str] = []
        for name in settings.sets:
            stored = name if name not in AUTOMATIC_CASE_SETS or len(self.registry.models) == 1 else f"{name}.{model}"
            if not again and name in AUTOMATIC_CASE_SETS:
                await self._fill(name, stored, model)
            version = kept["sets"].get(stored) if again else None
            places = await self._places(stored, version)
            if places is not None and places[1]:
                sets[stored] = places
            else:
                lacking.append(stored)
        by, share = settings.by, self.registry.config.gate.alpha / max(len(sets), 1)
        score = checked(load_function("gate.replay.by", by), by) if by not in (None, JUDGE_MEASURE) else None
        questions = {
            name: Questions(
                detect, share, by, score, [p.reward for p in places if p.reward is not None], [p.groups for p in places]
            )
            for name, (_, places) in sets.items()
        }
        began = kept["began"] if again else time.time()
        progress = ReplayProgress(control, sets, questions, ReplayBudget(settings.tokens), began, lacking=lacking)
        if again:
            try:
                progress.load(kept)
            except (KeyError, TypeError, ValueError) as e:  # a set was deleted meanwhile
                log.warning("the replay of %s begins again: %s", adapter.name, e)
                return await self._prepare(adapter, {})
        return progress

    async def _places(self, name: str, version: int | None) -> tuple[int, list[_Place]] | None:
        """A set's version and its cases."""
        found: list[_Place] = []
        after = ""
        while True:
            page = await self.access.ask(self.access.store.cases.page, name, version, after, 1000, whole=False)
            if page is None:
                return None
            # where no version was asked for, the first page says which one it is
            version = page.version
            found += [_Place(x.key, x.episode, x.reward, groups_of(x.tags, x.task)) for x in page.cases]
            if page.next is None:
                return version, found
            after = page.next

    async def _ask(self, name: str, progress: ReplayProgress) -> bool:
        """Ask until it is worse, or the cases or the tokens are over. False: it is this replay's no longer."""
        order = progress.order()
        kept = time.monotonic()
        while not progress.worse() and (progress.seen < len(order) or progress.again()):
            if why := progress.budget.over():
                progress.stopped = why
                return True
            adapter = self._waiting(name)
            if adapter is None or self.registry.accepted(adapter.model) != progress.control:
                return False
            some = order[progress.seen : progress.seen + CONCURRENT_CASES]
            cases = await self._whole(progress, some)
            if not await self._answer(adapter, progress, [case for case in cases if case is not None and case.steps]):
                await asyncio.sleep(1.0)
                continue
            for (_, names), case in zip(some, cases, strict=True):
                await in_thread(progress.take, names, case)
            self._show(name, progress)
            if time.monotonic() - kept > KEEP_EVERY:
                await self._keep(name, progress)
                kept = time.monotonic()
        return True

    async def _whole(self, progress: ReplayProgress, some: Sequence[tuple[Name, list[str]]]) -> list[ReplayCase | None]:
        found: dict[Name, ReplayCase] = {}
        by_set: dict[str, list[Name]] = defaultdict(list)
        for name, sets in some:
            by_set[sets[0]].append(name)
        cases = self.access.store.cases
        for one, names in by_set.items():
            for detail in await self.access.ask(cases.whole, one, progress.sets[one][0], names):
                found[detail.key, detail.id] = await in_thread(case_of, detail, self.settings.steps)
        return [found.get(name) for name, _ in some]

    async def _answer(self, adapter: c.Adapter, progress: ReplayProgress, cases: list[ReplayCase]) -> bool:
        """Both sides' replies to these cases. False: no engine has both sides just now."""
        needed = {adapter.name, progress.control} - {self.registry.base}
        able = [e for e in self.engines.takers() if needed <= e.loaded]
        if not able:
            return False
        engine = self._engine = self._engine if self._engine in able else able[-1]
        base = f"{engine.url}/v1"
        sides = [Side(n, base, n, ids=True) for n in (adapter.name, progress.control)]
        sent = self.registry.config.engine.headers(engine.url)
        judge = self.judging.case if self.settings.by == JUDGE_MEASURE else None
        assert self._turns is not None
        replayer = Replayer(
            *sides, samples=self.settings.samples, concurrency=CONCURRENT_CASES, budget=progress.budget,
            headers=sent, each=1,
            turn=self._turns.turn, after=judge,
        )  # fmt: skip
        begun = await replayer.run(cases)
        up = engine in self.engines.takers()
        return len(begun) == len(cases) and (up or all(case.error is None for case in cases))

    # what is known

    def _show(self, name: str, progress: ReplayProgress) -> None:
        adapter = self._waiting(name)
        if adapter is not None:
            verdict = progress.verdict(len(progress.order()), over=False)
            self.registry.put([adapter.model_copy(update={"replay": verdict, "reason": verdict.reason})])

    async def _keep(self, name: str, progress: ReplayProgress, *, ended: bool = False) -> None:
        value = progress.dump() | {"by": self._me, "at": time.time(), "ended": ended}
        change = {"key": f"replay/{name}", "value": value, "at": time.time(), "newest": ["replay/", 100]}
        await self.access.mutate("cache", change)
        if rows := await in_thread(self._worst, name, progress):
            await self.cases.write(result_set(name), rows)

    def _worst(self, name: str, progress: ReplayProgress) -> list[tuple[str, JsonObject]]:
        """The steps that people see, each case once: where it lost most."""
        found: dict[str, tuple[float, c.EpisodeDetail]] = {}
        for (of, question), pairs in progress.worst.items():
            for pair in pairs:
                if pair.difference >= 0 or pair.case is None:
                    continue
                detail = shown_step(pair, of, question, (name, progress.control))
                if pair.difference < found.get(detail.id, (0.0, detail))[0]:
                    found[detail.id] = pair.difference, detail
        return [case_change(detail) for _, detail in found.values()]

    async def _decide(self, name: str, progress: ReplayProgress) -> None:
        verdict = progress.verdict(len(progress.order()), over=True).model_copy(update={"ended": time.time()})
        await self._keep(name, progress, ended=True)
        known = await self.cases.known(result_set(name))
        verdict = verdict.model_copy(update={"worst": known.name if known else None})
        await self.fleet.agree(lambda: self._settle(name, verdict))
        detail = verdict.model_dump(mode="json", include={"outcome", "reason", "control", "tokens", "questions"})
        await decided(self.access.mutations, f"replay {verdict.outcome}", name, detail)
        await self._tidy(name.partition("@")[0])

    async def _settle(self, name: str, verdict: ReplayVerdict) -> None:
        adapter = self._waiting(name)
        if adapter is None:
            return
        adapter = adapter.model_copy(update={"replay": verdict, "reason": verdict.reason})
        if verdict.outcome == "refused":
            await self.lifecycle.take_back(adapter, verdict.reason, state=S.REFUSED)
            return
        told = event("replay", adapter=name, outcome=verdict.outcome, control=verdict.control, reason=verdict.reason)
        await self.lifecycle.journal.change([adapter], told)

    async def _tidy(self, model: str) -> None:
        """Drop the worst cases of versions long ago."""
        begins = result_set(f"{model}@")
        sets = [s for s in await self.access.ask(self.access.store.cases.sets) if s.name.startswith(begins)]
        for old in sorted(sets, key=lambda s: -s.changed)[KEPT_RESULT_VERSIONS:]:
            await self.cases.drop(old.name)

    async def worst(self, adapter: c.Adapter) -> c.ReplayShown:
        """What people see of a version's replay."""
        replay = adapter.replay
        pairs: list[ReplayPair] = []
        if replay is not None and (page := await self._results(result_set(adapter.name))) is not None:
            pairs = sorted(
                (pair_shown(x.detail) for x in page.cases if x.detail), key=lambda p: p.candidate - p.control
            )
        return c.ReplayShown(adapter=adapter.name, replay=replay, worst=pairs[:50], limits=LIMIT_TEXTS)

    async def _results(self, name: str) -> c.CasePage | None:
        return await self.access.ask(self.access.store.cases.page, name, None, "", 100, whole=True)

    # sets that fill themselves

    async def _fill(self, name: str, stored: str, model: str) -> None:
        if name == "auto-sample":
            known = await self.cases.known(stored)
            enough = known is not None and known.cases >= self.settings.cases // 2
            if enough and self.access.now() - known.changed < DAY_S:  # type: ignore[union-attr]
                return
            found, _ = await self.cases.find(EpisodeFilter(model=model, split="train", limit=1000))
            if chosen := spread(found, self.settings.cases):
                await self.cases.copy(stored, [(e.key, e.id) for e in chosen], instead=True)
            return
        new = await self._labelled(stored, model) if name == "auto-labelled" else await self._rolled_back(stored, model)
        if new:
            await self.cases.copy(stored, new)

    async def _labelled(self, stored: str, model: str) -> list[Name]:
        known = await self.cases.known(stored)
        room = self.settings.cases - (known.cases if known else 0)
        return await self.access.ask(self.access.store.cases.labelled, model, stored, room) if room > 0 else []

    async def _rolled_back(self, stored: str, model: str) -> list[Name]:
        """The runs with the lowest rewards of each version that was taken back: what spoke against it."""
        there = await self._places(stored, None)
        have = {(p.key, p.episode) for p in there[1]} if there else set()
        room = self.settings.cases - len(have)
        back = sorted((a for a in self.registry.in_state(S.ROLLED_BACK) if a.model == model), key=lambda a: -a.version)
        found: list[Name] = []
        for adapter in back[:ROLLBACKS_LOOKED_AT]:
            runs, _ = await self.cases.find(EpisodeFilter(model=model, adapter=adapter.name, limit=1000), 5000)
            rewarded = sorted((e for e in runs if e.reward is not None), key=lambda e: (e.reward, rank(e.key, e.id)))
            worst = [(e.key, e.id) for e in rewarded[: max(1, self.settings.cases // ROLLBACKS_LOOKED_AT)]]
            found += [one for one in worst if one not in have]
        return found[: max(room, 0)]


def spread(episodes: Sequence[c.Episode], count: int) -> list[c.Episode]:
    """A sample in which each value of each tag, and each task, has its part."""
    values: dict[str, set[str]] = defaultdict(set)
    for e in episodes:
        for tag, value in e.tags.items():
            values[tag].add(value)
    strata = [tag for tag, held in sorted(values.items()) if 1 < len(held) <= MOST_VALUES]
    chosen: dict[Name, c.Episode] = {}
    for by in (*strata, None):
        part = count // (len(strata) + 1) if by is not None else count - len(chosen)
        left = [e for e in episodes if (e.key, e.id) not in chosen]
        chosen |= {(e.key, e.id): e for e in sample(left, part, by)}
    return list(chosen.values())
