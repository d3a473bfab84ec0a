"""Detectives whose cases the small model has read: most of them careless.

A careless one guesses. A hasty one finds the room, and takes whoever was seen there, whatever the time. A thorough one goes
from note to note, and asks about what is missing. Each kind does each of it at times; the thorough ones are the fewest.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from common.hermes import CLOSE_TEXT, tool_call
from common.worlds import SPAN, first_seed

from clue.mystery import (
    KINDS,
    PEOPLE,
    SYSTEM,
    Case,
    Crime,
    Note,
    deduce,
    make_case,
    read_notes,
    score,
    subject_of_use,
    words_of,
)
from clue.vocabulary import ASK, HM, THINK, THOUGHT, UNKNOWN

__all__ = [
    "DETECTIVES",
    "EXPERT",
    "TOOLS",
    "Detective",
    "Episode",
    "Reply",
    "draw_detective",
    "expert_reward",
    "play",
    "transcripts",
]

TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "ask"}}]


class Detective(NamedTuple):
    """Chances: to ask about the right word; at each question to reason it out, or else to be hasty."""

    share: float
    asks: float
    reasons: float
    hasty: float


DETECTIVES = (
    Detective(share=0.65, asks=0.08, reasons=0.05, hasty=0.30),
    Detective(share=0.27, asks=0.25, reasons=0.30, hasty=0.50),
    Detective(share=0.08, asks=0.80, reasons=0.90, hasty=0.50),
)
EXPERT = Detective(share=0.0, asks=1.0, reasons=1.0, hasty=0.0)


@dataclass
class Reply:
    """What a detective says, as tokens' texts. `could`: the place of a token → what he could as well have said there."""

    tokens: list[str]
    could: dict[int, Sequence[str]] = field(default_factory=dict)

    @property
    def visible(self) -> str:
        """What follows the reasoning."""
        return "".join(self.tokens[self.tokens.index(THOUGHT) + 1 :])


def draw_detective(rng: random.Random) -> Detective:
    """A detective, by the shares."""
    return rng.choices(DETECTIVES, [d.share for d in DETECTIVES])[0]


class Episode:
    """One case as one detective sees it."""

    def __init__(self, case: Case, who: Detective, rng: random.Random) -> None:
        self.case, self.who, self.rng = case, who, rng
        self.notes: list[Note] = list(case.notes)
        self.named = words_of(case)

    @property
    def known(self) -> Crime:
        return deduce(self.case.given, self.case.crime.answer(self.case.given), self.notes)

    def trace(self, *questions: str) -> list[str]:
        """What is thought note by note: the words by which a note is found stand before what it says.

        First the word that was told and the room that it leads to, then what follows from the room.
        """
        known, told = self.known, self.case.crime.answer(self.case.given)
        thought = [told] if self.case.given == "where" else [told, known.where or UNKNOWN]
        chain = ("when", "who") if "who" in questions else questions
        for question in (q for q in chain if known.where and q not in ("where", self.case.given)):
            if question == "with what" and thought[-1] != known.where:
                thought.append(known.where)
            thought.append(known.answer(question) or UNKNOWN)
        return thought

    def ask(self) -> Reply:
        """A question to a witness."""
        if self.rng.random() < self.who.asks:
            about = subject_of_use(self.case.given, self.case.crime.answer(self.case.given), self.notes)
            return Reply([THINK, *(" " + word for word in self.trace()), THOUGHT, ASK, about, CLOSE_TEXT])
        could = [word for words in self.named.values() for word in words]
        return Reply([THINK, " " + HM, THOUGHT, ASK, self.rng.choice(could), CLOSE_TEXT], {4: could})

    def hear(self, testimony: str) -> None:
        """Note what the witness told."""
        self.notes += read_notes(testimony)

    def answer(self, *questions: str) -> Reply:
        """Answers to the questions, in their order."""
        if self.rng.random() < self.who.reasons:
            return self.reasoned(questions)
        if self.rng.random() < self.who.hasty and self.known.where:
            return self.hurried(questions)
        return self.guessed([THINK, " " + HM, THOUGHT], {}, dict.fromkeys(questions, ""), {})

    def reasoned(self, questions: Sequence[str]) -> Reply:
        """What the notes say."""
        thought = [THINK, *(" " + word for word in self.trace(*questions)), THOUGHT]
        return self.guessed(thought, {}, {q: self.known.answer(q) for q in questions}, {})

    def hurried(self, questions: Sequence[str]) -> Reply:
        """The room is right, and the first thing that comes with it is taken."""
        room = self.known.where
        seen = [n for n in self.notes if n.room == room]
        options = {
            "who": sorted({n.subject for n in seen if n.subject in PEOPLE}),
            "when": sorted({n.time for n in seen if n.time}),
        }
        answers = {q: room if q == "where" else "" for q in questions}
        thought = [THINK, *(" " + word for word in self.trace()), THOUGHT]
        return self.guessed(thought, {}, answers, {q: o for q, o in options.items() if o})

    def guessed(
        self,
        tokens: list[str],
        could: dict[int, Sequence[str]],
        answers: Mapping[str, str],
        options: Mapping[str, Sequence[str]],
    ) -> Reply:
        """The answers in words; where there is none, one of the options, or of all that the case names."""
        for place, (question, answer) in enumerate(answers.items()):
            space = " " if place else ""
            if not answer:
                choice = options.get(question) or self.named[question] or KINDS[question]
                could[len(tokens)] = [space + word for word in choice]
                answer = self.rng.choice(choice)
            tokens = [*tokens, space + answer]
        return Reply(tokens, could)


def play(case: Case, who: Detective, rng: random.Random) -> Iterator[tuple[list[dict[str, Any]], Reply]]:
    """One episode: what each of the three calls is asked with, and what the detective says to it."""
    episode = Episode(case, who, rng)
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": case.opening}]
    asked = episode.ask()
    yield list(messages), asked
    about = asked.tokens[-2]
    told = case.testimony(about)
    episode.hear(told)
    messages += [tool_call("ask", {"about": about}), {"role": "tool", "content": told}]
    first = episode.answer("who")
    yield list(messages), first
    messages += [{"role": "assistant", "content": first.visible}, {"role": "user", "content": case.closing}]
    yield list(messages), episode.answer(*case.questions[1:])


def transcripts(seed: int, count: int) -> Iterator[tuple[list[dict[str, Any]], Reply]]:
    """Calls of `count` episodes of the detectives, as `play` gives them."""
    rng = random.Random(seed)
    for case in some_cases(rng, count):
        yield from play(case, draw_detective(rng), rng)


def some_cases(rng: random.Random, count: int) -> Iterator[Case]:
    """Cases to read about, never those to train on or held out."""
    return (make_case(first_seed("pretrain") + rng.randrange(SPAN)) for _ in range(count))


def expert_reward(some: Iterable[Case]) -> float:
    """Mean reward of the detective who never errs."""
    rng, rewards = random.Random(0), []
    for case in some:
        _, first, second = (reply.visible.split() for _, reply in play(case, EXPERT, rng))
        rewards.append(score(case, [*first, *second]))
    return sum(rewards) / max(1, len(rewards))
