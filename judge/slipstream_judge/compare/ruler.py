"""RULER: one vote on one set of runs, and how votes become scores.

Votes: each sees the runs in another order and under other ids. Their mean counts, and their spread is kept.

A group that is too long for one call: overlapping parts, tied by anchors, on one scale.

The first part is judged; its best and its worst run (or its middle one, where only one fits) are the anchors, and
stand in every other part too, without their scores being told. A judge scores relatively, so each part has a scale of
its own: the anchors say how to map it back (shift, and with two anchors also stretch, within 0.5 … 2). Mapped scores
that leave 0 … 1 shrink the whole group evenly, so that no two of them become equal by clipping.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any, TypeVar

from slipstream.settings import JudgeConfig
from slipstream_judge.model.llm import ANSWER_SHARE, Answer, JudgeFailed, Llm, TooLong, Usage
from slipstream_judge.model.metrics import JudgeMetrics
from slipstream_judge.text.answer import BadAnswer, Grade, parse
from slipstream_judge.text.excerpts import RESULT_LEVELS, Shown, estimate, fit, force, show
from slipstream_judge.text.prompt import JudgePrompt, Mode, build
from slipstream_judge.text.transcript import Transcript

MIN_EXCHANGE_RUNS = 6
"""Runs from which on neighbours are exchanged; fewer runs reach every place without."""


@dataclass(slots=True)
class VoteTally:
    """One run's votes: ``spread`` is their standard deviation, ``reason`` that of the vote nearest to the mean."""

    value: float
    spread: float
    values: list[float]
    reason: str


def rng_of(digests: Sequence[str], vote: int) -> random.Random:
    """The same runs and vote are shuffled alike wherever they are judged. Else the cache would hide a chance."""
    seed = hashlib.sha256(f"{vote}:{','.join(sorted(digests))}".encode()).digest()
    return random.Random(int.from_bytes(seed[:8], "big"))


def orders(digests: Sequence[str], votes: Sequence[int]) -> list[list[str]]:
    """The order that each vote shows.

    Four votes make a set: an order, the same half a turn on, and both backwards with neighbours exchanged. Backwards
    cancels a bias that grows from place to place. The turn and the exchange bring other runs to the ends, which
    judges often favour. The next set begins a quarter of a turn and one place further on.
    """
    base = sorted(digests)
    rng_of(digests, 0).shuffle(base)
    return [_order(base, vote) for vote in votes]


def _order(base: Sequence[str], vote: int) -> list[str]:
    runs = len(base)
    turn = (vote // 4 * (runs // 4 + 1) + (runs // 2 if vote % 2 else 0)) % max(1, runs)
    order = [*base[turn:], *base[:turn]]
    if vote % 4 < 2:
        return order
    order.reverse()
    return _neighbours_exchanged(order) if runs >= MIN_EXCHANGE_RUNS else order


def _neighbours_exchanged(order: Sequence[str]) -> list[str]:
    """In pairs from both ends to the middle, which stays."""
    found, last = list(order), len(order) - 1
    for i in range(0, len(order) // 2 - 1, 2):
        found[i], found[i + 1] = found[i + 1], found[i]
        if last - i - 1 > i + 1:
            found[last - i], found[last - i - 1] = found[last - i - 1], found[last - i]
    return found


def labels(order: Sequence[str], rng: random.Random) -> list[str]:
    """An id for each run; which run gets which says nothing about its place."""
    ids = [f"e{i}" for i in range(1, len(order) + 1)]
    rng.shuffle(ids)
    return ids


def tally(votes: Sequence[Mapping[str, Grade]]) -> dict[str, VoteTally]:
    """All votes have the same runs."""
    found = {}
    for run in votes[0]:
        values = [v[run].score for v in votes]
        mean = fmean(values)
        nearest = min(votes, key=lambda v, run=run, mean=mean: abs(v[run].score - mean))  # type: ignore[misc]
        found[run] = VoteTally(mean, pstdev(values), values, nearest[run].reason)
    return found


STRETCH_BOUNDS = (0.5, 2.0)


def pack(order: Sequence[str], sizes: Mapping[str, int], room: int, least: int) -> list[list[str]]:
    """Runs in their order, as many a part as fit ``room`` tokens and at least ``least``; the last may have fewer."""
    parts: list[list[str]] = []
    used = 0
    for run in order:
        if not parts or (used + sizes[run] > room and len(parts[-1]) >= least):
            parts.append([])
            used = 0
        parts[-1].append(run)
        used += sizes[run]
    return parts


def choose_anchors(scores: Mapping[str, Grade], sizes: Mapping[str, int], room: int) -> list[str]:
    """Best and worst of the first part if they leave half of the room, else the one in the middle."""
    ranked = sorted(scores, key=lambda r: (scores[r].score, r))
    ends = [ranked[0], ranked[-1]]
    if len(ranked) >= 3 and sum(sizes[r] for r in ends) <= room // 2:
        return ends
    return [ranked[len(ranked) // 2]]


def _mapping(own: Sequence[float], reference: Sequence[float]) -> tuple[float, float]:
    """(stretch, shift) that takes the anchors' own scores to the reference."""
    stretch = 1.0
    if len(own) == 2 and abs(own[1] - own[0]) > 0.05:
        stretch = (reference[1] - reference[0]) / (own[1] - own[0])
        stretch = min(max(stretch, STRETCH_BOUNDS[0]), STRETCH_BOUNDS[1])
    return stretch, fmean(reference) - stretch * fmean(own)


def merge(parts: Sequence[Mapping[str, Grade]], anchors: Sequence[str]) -> dict[str, Grade]:
    """One scale for all.

    The reference is the anchors' mean over the parts; reasons are those of the first part that a run stood in.
    """
    reference = [fmean(p[a].score for p in parts) for a in anchors]
    values: dict[str, list[float]] = {}
    reasons: dict[str, str] = {}
    for part in parts:
        stretch, shift = _mapping([part[a].score for a in anchors], reference)
        for run, grade in part.items():
            values.setdefault(run, []).append(stretch * grade.score + shift)
            reasons.setdefault(run, grade.reason)
    means = {run: fmean(v) for run, v in values.items()}
    low, high = min(0.0, *means.values()), max(1.0, *means.values())
    return {run: Grade(min(1.0, max(0.0, (mean - low) / (high - low))), reasons[run]) for run, mean in means.items()}


log = logging.getLogger(__name__)
T = TypeVar("T")
PROMPT_OVERHEAD_TOKENS = 800
"""Tokens of a prompt beside its transcripts and its rubric, generously."""
LEAST_ROOM = 256
MAX_HALVINGS = 8
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
        """Tokens of transcript in one prompt."""

    async def vote(
        self, runs: Mapping[str, Transcript], order: Sequence[str], number: int, ask: Question, deadline: float
    ) -> Vote:
        """Judge ``order``'s runs in that order. Raises ``JudgeFailed``, ``OverBudget``."""
        for _ in range(MAX_HALVINGS + 1):
            await self.look(ask.rubric)
            room = self.room
            try:
                return await self._vote(runs, order, number, ask, deadline)
            except TooLong:
                self.shrink(room)
        raise JudgeFailed("the transcripts are beyond the judge's context even when shortened")

    async def look(self, rubric: str) -> None:
        """Show no more than the judge's server says that it holds, beside the rest of the prompt and an answer."""
        context = (await self.llm.look()).context
        if context is not None:
            rest = PROMPT_OVERHEAD_TOKENS + estimate(rubric) + context // ANSWER_SHARE
            self.room = min(self.room, max(LEAST_ROOM, context - rest))

    def shrink(self, room: int) -> None:
        """The model would not take ``room`` tokens of transcript."""
        self.room = min(self.room, max(LEAST_ROOM, room // 2))
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
            if attempt == 0 and await self._is_cut(prompt, answer):
                raise TooLong("the judge's server cut the prompt")
            try:
                return parse(answer.text, prompt.ids, prompt.others), usage
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

    async def _is_cut(self, prompt: JudgePrompt, answer: Answer) -> bool:
        """Whether a near server cut the prompt without a word.

        It holds less than the prompt is long, or counted far fewer tokens than any tokenizer makes of so much text.
        """
        before, used = self.llm.served.context, answer.usage.prompt_tokens
        length = sum(estimate(m["content"]) for m in prompt.messages)
        context = (await self.llm.look("after")).context
        if before is None and context is not None and used + answer.usage.completion_tokens >= context:
            return True
        # no server holds less than that: one that says so does not count its prompts
        if self.llm.near and used >= LEAST_ROOM and 4 * used < length - PROMPT_OVERHEAD_TOKENS:
            self.llm.served.context = used + answer.usage.completion_tokens
            return True
        return False


async def gather(jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All of them, or the first error with the others cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(job) for job in jobs]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [t.result() for t in tasks]
