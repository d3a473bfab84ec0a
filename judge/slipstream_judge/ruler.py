"""RULER: one vote on one set of runs. One call, or several where the runs do not fit one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from slipstream.settings import JudgeConfig
from slipstream_judge.excerpts import RESULT_LEVELS, Shown, estimate, fit, force, show
from slipstream_judge.llm import JudgeFailed, Llm, TooLong, Usage
from slipstream_judge.metrics import JudgeMetrics
from slipstream_judge.parts import choose_anchors, merge, pack
from slipstream_judge.prompt import BadAnswer, Grade, JudgePrompt, Mode, build, parse
from slipstream_judge.transcript import Transcript
from slipstream_judge.votes import labels, rng_of

log = logging.getLogger(__name__)
T = TypeVar("T")
HALVINGS = 8
"""How often transcripts get half the room when the model says that its context is smaller than ``judge.context``."""


@dataclass(slots=True)
class Vote:
    grades: dict[str, Grade]
    usage: Usage = field(default_factory=Usage)
    parts: int = 1
    places: dict[str, float] = field(default_factory=dict)
    """Where each run stood in what was shown, from 0 (first) to 1 (last)."""


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask about the runs. ``known``: scores of those that have one already (mode window)."""

    rubric: str
    mode: Mode
    known: Mapping[str, float] = field(default_factory=dict)


class Ruler:
    """Runs are named by their transcripts' digests throughout."""

    def __init__(self, judge: JudgeConfig, llm: Llm, metrics: JudgeMetrics) -> None:
        self.judge, self.llm, self.metrics = judge, llm, metrics
        self.room = judge.context

    async def vote(
        self, runs: Mapping[str, Transcript], order: Sequence[str], number: int, ask: Question, deadline: float
    ) -> Vote:
        """Judge ``order``'s runs in that order. Raises ``JudgeFailed``, ``OverBudget``."""
        for _ in range(HALVINGS + 1):
            room = self.room
            try:
                return await self._vote(runs, order, number, ask, deadline)
            except TooLong:
                self.shrink(room)
        raise JudgeFailed("the transcripts are beyond the judge's context even when shortened")

    def shrink(self, room: int) -> None:
        """The model would not take ``room`` tokens of transcript."""
        self.room = min(self.room, max(256, room // 2))
        log.warning(
            "the model's context is smaller than judge.context; showing at most %s tokens of transcript from now on",
            self.room,
        )

    async def _vote(
        self, runs: Mapping[str, Transcript], order: Sequence[str], number: int, ask: Question, deadline: float
    ) -> Vote:
        ordered = [runs[r] for r in order]
        shown = fit(ordered, self.room, RESULT_LEVELS) if len(order) > 2 else force(ordered, self.room)
        if shown is not None:
            return await self.part(shown, order, number, ask, deadline)
        small = show(ordered, RESULT_LEVELS[-1])
        sizes = {r: estimate(text) for r, text in zip(order, small.episodes, strict=True)}
        room = self.room - estimate(small.shared)
        first_runs = pack(order, sizes, room, 2)[0]
        first = await self.part(force([runs[r] for r in first_runs], self.room), first_runs, number, ask, deadline)
        if len(first_runs) == len(order):
            return first
        anchors = choose_anchors(first.grades, sizes, room)
        rest = [r for r in order if r not in first.grades]
        left = pack(rest, sizes, room - sum(sizes[a] for a in anchors), 1)
        rng = rng_of(order, number)

        async def one(part: list[str]) -> Vote:
            shuffled = [*anchors, *part]
            rng.shuffle(shuffled)
            return await self.part(force([runs[r] for r in shuffled], self.room), shuffled, number, ask, deadline)

        votes = [first, *await gather([one(p) for p in left])]
        usage = Usage()
        for v in votes:
            usage.add(v.usage)
        places = {r: place for v in reversed(votes) for r, place in v.places.items()}
        return Vote(merge([v.grades for v in votes], anchors), usage, len(votes), places)

    async def part(self, shown: Shown, order: Sequence[str], number: int, ask: Question, deadline: float) -> Vote:
        """One prompt, and one repair if its answer is no good."""
        known = ask.known
        ids = labels(order, rng_of(order, number))
        by_id = dict(zip(ids, order, strict=True))
        prompt = build(shown, ids, ask.rubric, ask.mode, {i: known[r] for i, r in by_id.items() if r in known})
        grades, usage = await self._ask(prompt, deadline)
        last = max(1, len(order) - 1)
        places = {r: place / last for place, r in enumerate(order) if r not in known}
        return Vote({by_id[i]: v for i, v in grades.items()}, usage, 1, places)

    async def _ask(self, prompt: JudgePrompt, deadline: float) -> tuple[dict[str, Grade], Usage]:
        usage = Usage()
        messages = prompt.messages
        problems: list[str] = []
        for attempt in range(2):
            answer = await self.llm.ask(messages, prompt.schema, deadline)
            usage.add(answer.usage)
            try:
                return parse(answer.text, prompt.ids), usage
            except BadAnswer as bad:
                problems = bad.problems
            if answer.refusal and not answer.text:
                problems = ["it was a refusal; nothing but a grade of a finished record is asked for"]
                self.metrics.calls.labels("refused").inc()
            elif answer.finish == "length":
                problems = ["it was cut at the token limit"]
            if attempt == 0:
                self.metrics.repairs.inc()
                messages = prompt.again(problems[:8])
        what = "the judge's answer could not be used, and the one after it neither"
        raise JudgeFailed(f"{what}: {'; '.join(problems[:8])}")


async def gather(jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All of them, or the first error with the others cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(job) for job in jobs]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [t.result() for t in tasks]
