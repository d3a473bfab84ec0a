"""From a group to its scores: which runs are distinct, how they are compared, votes, cache, and what is stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from slipstream.contract import Group, GroupKind, Score, Split
from slipstream.settings import JudgeConfig
from slipstream_judge.compare.rubric import Rubrics, rubric_hash
from slipstream_judge.compare.ruler import Question, Ruler, Vote, VoteTally, gather, orders, tally
from slipstream_judge.compare.slots import JudgeSlots, TenantSlots
from slipstream_judge.model.cache import VoteCache, cache_key
from slipstream_judge.model.llm import JudgeFailed, TooLong, Usage
from slipstream_judge.model.metrics import JudgeMetrics
from slipstream_judge.text.answer import Grade
from slipstream_judge.text.excerpts import RESULT_LEVELS, fit, force
from slipstream_judge.text.prompt import PROMPT_VERSION, Mode
from slipstream_judge.text.transcript import Transcript, of_episode

log = logging.getLogger(__name__)
NEXT_STEP = (
    "Each run ends with one next step after the same beginning, and nobody knows how it went on. Judge these steps: "
    "which is the best thing to do here, and does it bring the task's goal nearer?"
)
"""Behind the rubric, where a step was sampled several times (``explore = "siblings"``)."""


@dataclass(slots=True)
class Judged:
    """``votes``: what each vote said, runs named by digest.

    ``runs``: digest → ids of the episodes that it stands for.
    """

    scores: list[Score]
    votes: list[Vote]
    runs: dict[str, list[str]]
    mode: Mode
    usage: Usage = field(default_factory=Usage)


@dataclass(slots=True)
class _Work:
    runs: dict[str, Transcript]
    """To be scored."""
    context: dict[str, Transcript]
    known: dict[str, float]
    """Scores of ``context``, newest or most alike first."""
    rubric: str
    mode: Mode
    deadline: float


class GroupJudge:
    """Scores groups with one model.

    ``name``: the reward name that its scores get; ``slots``: as many groups as ask the model at once.
    """

    def __init__(
        self,
        judge: JudgeConfig,
        ruler: Ruler,
        rubrics: Rubrics,
        cache: VoteCache,
        metrics: JudgeMetrics,
        *,
        name: str | None = None,
        slots: TenantSlots | None = None,
    ) -> None:
        self.judge, self.ruler, self.rubrics, self.cache, self.metrics = judge, ruler, rubrics, cache, metrics
        self.name = name or judge.name
        self.slots = slots or JudgeSlots(judge.concurrency).tenant()

    async def score(self, group: Group, deadline: float, votes: Sequence[int] | None = None) -> Judged:
        """Score what is not context. ``deadline``: seconds since the epoch. Raises ``JudgeFailed``, ``OverBudget``."""
        votes = range(self.judge.votes) if votes is None else votes
        runs: dict[str, list[str]] = {}
        transcripts: dict[str, Transcript] = {}
        for episode in group.episodes:
            if not episode.context:
                long = len(episode.calls) > 50
                transcript = await asyncio.to_thread(of_episode, episode) if long else of_episode(episode)
                transcripts.setdefault(transcript.digest, transcript)
                runs.setdefault(transcript.digest, []).append(episode.episode.id)
        if not transcripts:
            return Judged([], [], {}, "absolute")
        context, known = self._context(group, transcripts)
        rubric, mode = self.rubrics.of(group.task), self._mode(group, transcripts, known)
        if group.split == Split.SIBLING:
            rubric = f"{rubric}\n\n{NEXT_STEP}"
        work = _Work(transcripts, context, known, rubric, mode, deadline)
        if mode == "absolute":
            alone = [_Work({d: t}, {}, {}, rubric, mode, deadline) for d, t in transcripts.items()]
            return self._scores(await gather([self._votes(one, votes) for one in alone]), runs, work)
        return self._scores([await self._votes(work, votes)], runs, work)

    def _mode(self, group: Group, transcripts: dict[str, Transcript], known: dict[str, float]) -> Mode:
        if group.kind is GroupKind.WINDOW or len(transcripts) == 1:
            return "window" if known and self.judge.singles != "absolute" and len(transcripts) == 1 else "absolute"
        if group.kind is GroupKind.LIKE:
            return "absolute" if self.judge.singles == "absolute" else "alike"
        return "group"

    def _context(self, group: Group, subjects: dict[str, Transcript]) -> tuple[dict[str, Transcript], dict[str, float]]:
        """The scored neighbours of a single episode.

        One that did just the same is no help to compare with, but its score is: it is kept too.
        """
        context: dict[str, Transcript] = {}
        known: dict[str, float] = {}
        for episode in group.episodes:
            latest = [r.value for r in episode.rewards if r.name == self.name and 0 <= r.value <= 1]
            if not episode.context or not latest or len(known) >= self.judge.window:
                continue
            transcript = of_episode(episode)
            if transcript.digest not in subjects:
                context.setdefault(transcript.digest, transcript)
                known.setdefault(transcript.digest, latest[-1])
        return context, known

    async def _votes(self, work: _Work, numbers: Sequence[int]) -> tuple[list[Vote], int]:
        """Every vote, and how many came from the cache. A minority of votes may fail."""
        shown = dict(zip(numbers, orders([*work.runs], numbers), strict=True))
        keys = {n: self._key(work, shown[n], n) for n in numbers}
        kept = {n: _unpack(await self.cache.get(keys[n]), shown[n]) for n in numbers}
        todo = [n for n in numbers if kept[n] is None]
        if not todo:
            return [v for v in kept.values() if v is not None], len(numbers)
        async with self.slots:
            answers = await asyncio.gather(*(self._ask(work, shown[n], n) for n in todo), return_exceptions=True)
        made = {n: a for n, a in zip(todo, answers, strict=True) if not isinstance(a, BaseException)}
        bad = [a for a in answers if isinstance(a, BaseException)]
        good = len(numbers) - len(bad)
        for error in bad:
            if not isinstance(error, JudgeFailed) or error.retry_after is not None or 2 * good <= len(numbers):
                raise error
            log.warning("one vote of %s is left out: %s", len(numbers), type(error).__name__)
        for n, vote in made.items():
            await self.cache.put(keys[n], _pack(vote))
        votes = {n: v for n, v in (kept | made).items() if v is not None}
        return list(votes.values()), len(votes) - len(made)

    def _key(self, work: _Work, order: Sequence[str], number: int) -> str:
        j = self.judge
        return cache_key(
            prompt=PROMPT_VERSION,
            model=self.ruler.llm.model,
            base=j.api_base,
            rubric=work.rubric,
            mode=work.mode,
            temperature=j.params.get("temperature", 0.0),
            params={name: value for name, value in j.params.items() if name not in ("temperature", "max_tokens")},
            max_tokens=j.params.get("max_tokens"),
            context=j.context,
            vote=number,
            runs=sorted(order),
            known=sorted(work.known.items()),
        )

    async def _ask(self, work: _Work, order: list[str], number: int) -> Vote:
        if work.mode != "window":
            return await self.ruler.vote(work.runs, order, number, Question(work.rubric, work.mode), work.deadline)
        known = dict(work.known)
        runs = work.context | work.runs
        while known:
            await self.ruler.look(work.rubric)
            shown_order = orders([*known, *order], [number])[0]
            shown = fit([runs[r] for r in shown_order], self.ruler.room, RESULT_LEVELS)
            if shown is None and len(known) > 1:
                known.popitem()  # the least alike goes first
                continue
            shown = shown or force([runs[r] for r in shown_order], self.ruler.room)
            ask = Question(work.rubric, "window", dict(known))
            try:
                return await self.ruler.part(shown, shown_order, number, ask, work.deadline)
            except TooLong:
                self.ruler.shrink(self.ruler.room)
                known.popitem()
        raise JudgeFailed("beyond the judge's context, even beside a single scored episode")

    def _scores(self, judged: Sequence[tuple[list[Vote], int]], runs: dict[str, list[str]], work: _Work) -> Judged:
        usage = Usage()
        tallies: dict[str, VoteTally] = {}
        votes: list[Vote] = []
        hits = 0
        for found, cached in judged:
            for vote in found:
                usage.add(vote.usage)
            tallies |= tally([v.grades for v in found])
            votes += found
            hits += cached
        meta: dict[str, JsonValue] = {
            "model": self.ruler.llm.model,
            "prompt": PROMPT_VERSION,
            "rubric": rubric_hash(work.rubric),
            "mode": work.mode,
            "votes": len(judged[0][0]),
            "tokens": usage.tokens,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cost": usage.cost,
            "latency": round(usage.seconds, 3),
            "calls": usage.calls,
            "cached": hits == len(votes),
            "parts": max(v.parts for v in votes),
            "judged_with": sum(len(ids) for ids in runs.values()),
        }
        if work.mode == "window":
            meta["compared_with"] = len(work.known)
        scores = []
        for digest, ids in runs.items():
            t = tallies[digest]
            for episode in ids:
                own = dict(meta) | {"spread": t.spread} | ({"same_as": ids[0]} if episode != ids[0] else {})
                scores.append(
                    Score(episode=episode, name=self.name, value=t.value, reason=t.reason, values=[*t.values], meta=own)
                )
                if len(t.values) > 1:
                    self.metrics.spread.observe(t.spread)
        self.metrics.episodes.labels(work.mode).inc(len(scores))
        return Judged(scores, votes, runs, work.mode, usage)


def _pack(vote: Vote) -> dict[str, Any]:
    return {"grades": {r: [v.score, v.reason] for r, v in vote.grades.items()}, "parts": vote.parts}


def _unpack(value: dict[str, Any] | None, order: Sequence[str]) -> Vote | None:
    """A kept vote; nothing was spent on it this time. None for what is not one."""
    try:
        grades = {r: Grade(float(v[0]), str(v[1])) for r, v in (value or {})["grades"].items()}
        return Vote(grades, Usage(), int((value or {})["parts"])) if set(grades) == set(order) else None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None
