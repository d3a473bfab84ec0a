"""Those whose research the small model has read: most of them clumsy.

The clumsy search for any word of the question, have any mail read, take any day that stands in it, and note nothing; the
better ones are the fewest. They see what an agent sees. The expert does nothing clumsy.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mail.mailbox import (
    COMPACT_AFTER,
    DAYS,
    MAX_CALLS,
    NAMES,
    NOTES,
    NOTHING,
    READER,
    SYSTEM,
    THINGS,
    TOOLS,
    UNKNOWN,
    Question,
    Research,
    compacted,
    questions,
    value_of,
)

__all__ = ["EXPERT", "PLAYERS", "Player", "Researcher", "expert_reward", "play", "transcripts"]

Conversation = tuple[list[dict[str, Any]], list[dict[str, Any]]]
CONTENT = {*THINGS, *NAMES}
LISTED_HIT = re.compile(r"(\w+) (\w+) (\d)\b")
SAME = re.compile(r"same (?:day )?as (?:the )?(\w+) (?:for )?(\w+)")


class Player(NamedTuple):
    """Chances, each time: to search for the thing and the name at once, else for one of the two rather than any word; to
    have the mail read that is about them; to search again where none is; to report right what a mail says; to note what
    was found; to go after what a mail points to; not to give up.
    """

    share: float
    focuses: float
    sees: float
    picks: float
    patient: float
    reports: float
    notes: float
    follows: float
    persists: float


PLAYERS = (
    Player(0.65, focuses=0.15, sees=0.6, picks=0.7, patient=0.4, reports=0.6, notes=0.5, follows=0.5, persists=0.5),
    Player(0.22, focuses=0.5, sees=0.8, picks=0.85, patient=0.6, reports=0.75, notes=0.75, follows=0.7, persists=0.7),
    Player(0.13, focuses=0.95, sees=1, picks=0.97, patient=0.9, reports=0.97, notes=0.97, follows=0.95, persists=0.9),
)
EXPERT = Player(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
KINDS = {"clumsy": PLAYERS, "expert": (EXPERT,)}


@dataclass
class Researcher:
    """A player at one question: what is known so far, and the next move."""

    player: Player
    question: Question
    rng: random.Random
    target: tuple[str, str] = ("", "")
    """(thing, name) that is searched for."""
    listed: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Hit → (thing, name), where the last thing seen is a list of them, or a note of one."""
    found: str = ""
    gives_up: bool = False

    def __post_init__(self) -> None:
        self.target = (self.question.thing, self.question.name)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def keywords(self) -> str:
        """What to search for."""
        if self.chance(self.player.focuses):
            return " ".join(self.target)
        return self.rng.choice(self.target if self.chance(self.player.sees) else self.question.text.split())

    def move(self) -> tuple[str, str]:
        """The next tool, and its argument as JSON."""
        if self.found or self.gives_up:
            return "answer", f'{{"text": "{self.found or UNKNOWN}"}}'
        if self.listed:
            right = [hit for hit, pair in self.listed.items() if pair == self.target]
            if right and self.chance(self.player.picks):
                return "read", self.named(right[0])
            if right or not self.chance(self.player.patient):
                return "read", self.named(self.rng.choice(list(self.listed)))
        return "search", f'{{"keywords": "{self.keywords()}"}}'

    def named(self, hit: int) -> str:
        """The arguments to read a hit: its subject and its number."""
        return json.dumps({"subject": " ".join(self.listed[hit]), "hit": hit})

    def listing(self, text: str) -> None:
        """Take in what a search has found."""
        self.listed = {int(hit): (thing, name) for thing, name, hit in LISTED_HIT.findall(text)}

    def told(self, report: str) -> None:
        """Take in what was read, or the own notes."""
        self.listing(report)
        if self.listed:  # the notes name one hit
            [self.target] = self.listed.values()
            return
        if report in DAYS:
            self.found = report
        elif same := SAME.search(report):
            if self.chance(self.player.follows):
                self.target = (same[1], same[2])
            else:
                self.gives_up = True
        elif report == NOTHING:
            self.gives_up = not self.chance(self.player.persists)

    def report(self, brief: str) -> str:
        """What the reader of a mail says of it."""
        words, mail = brief.removeprefix("words: ").split(". mail: ")
        days = [word for word in re.findall(r"\w+", mail) if word in DAYS]
        if not self.chance(self.player.reports):
            return self.rng.choice([*days, NOTHING])
        about = re.search(r"the (\w+) for (\w+) is", mail)
        meant = {word for word in words.split() if word in CONTENT}
        if about is None or not meant <= set(about.groups()):
            return NOTHING
        same = SAME.search(mail)
        return f"same as {same[1]} {same[2]}" if same else days[-1]

    def note(self, target: tuple[str, str]) -> str:
        """Notes of what is known. `target`: what the question, or the notes before, asked for."""
        if not self.chance(self.player.notes):
            return NOTHING
        if self.found:
            return self.found
        for hit, pair in self.listed.items():
            if pair == self.target:
                return f"hit {' '.join(pair)} {hit}"
        return f"same as {' '.join(self.target)}" if self.target != target else NOTHING


def play(question: Question, player: Player, rng: random.Random) -> tuple[Research, list[Conversation]]:
    """One question: the research at its end, and its conversations. Each assistant message stands in one of them only."""
    research, mind = Research(question), Researcher(player, question, rng)
    asked = (question.thing, question.name)
    start = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question.text}]
    messages: list[dict[str, Any]] = start
    held: list[Conversation] = [(messages, TOOLS)]
    for number in range(1, MAX_CALLS + 1):
        tool, arguments = mind.move()
        function = {"name": tool, "arguments": arguments}
        messages.append(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call", "type": "function", "function": function}],
            }
        )
        value = str(value_of(json.loads(arguments)))
        if tool == "answer":
            research.answer = value
            break
        if tool == "search":
            said = research.search(value)
            mind.listing(said)
        else:
            brief = research.brief(int(value)) or ""
            said = mind.report(brief)
            held.append(([*reader_asked(brief), {"role": "assistant", "content": said}], []))
            mind.told(said)
        messages.append({"role": "tool", "tool_call_id": "call", "content": said})
        if number % COMPACT_AFTER == 0 and number < MAX_CALLS:
            notes = mind.note(asked)
            messages += [{"role": "user", "content": NOTES}, {"role": "assistant", "content": notes}]
            messages = [start[0], {"role": "user", "content": compacted(question, notes)}]
            held.append((messages, TOOLS))
            mind = Researcher(player, question, rng)
            if notes != NOTHING:
                mind.told(notes)
    return research, held


def reader_asked(brief: str) -> list[dict[str, Any]]:
    """The messages of the sub-agent that reads a mail."""
    return [{"role": "system", "content": READER}, {"role": "user", "content": brief}]


def expert_reward(some: Sequence[Question]) -> float:
    """Mean reward of the expert on these questions."""
    rng = random.Random(0)
    return sum(play(question, EXPERT, rng)[0].reward for question in some) / max(1, len(some))


def transcripts(seed: int, count: int, players: str = "clumsy") -> Iterator[Conversation]:
    """`count` conversations as (messages, tools), in OpenAI's form: of main agents, before and after their notes, and of
    readers. Every assistant message is the player's own.

    `players`: "clumsy" (the mixture that the small model has read) or "expert".
    """
    rng = random.Random(seed)
    kinds = KINDS[players]
    made = 0
    for question in questions("pretrain", seed):
        player = rng.choices(kinds, [kind.share for kind in kinds])[0]
        for conversation in play(question, player, rng)[1]:
            if made == count:
                return
            made += 1
            yield conversation
