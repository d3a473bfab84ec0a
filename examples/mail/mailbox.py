"""A mailbox of a thousand mails, and questions whose answer stands in one or two of them.

Each question is made from one integer seed, and so is its mailbox. A mail says on which day something is for somebody,
or that it is on the same day as something else: then the answer stands in another mail. Whoever wrote a mail is named in
it, and so is the day when it was written, so that a search finds more than was meant.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from common.worlds import DAYS, first_seed, function_tool, listed
from common.worlds import NAMES as BASIC_NAMES
from common.worlds import THINGS as BASIC_THINGS

__all__ = [
    "TOOLS",
    "Mail",
    "Mailbox",
    "Question",
    "Research",
    "compacted",
    "listing",
    "mailbox_of",
    "make_question",
    "questions",
    "value_of",
]


NAMES = BASIC_NAMES + listed(
    "abel bela cora dirk elsa finn gina hans iris jana karl lena max nora otto pia ruth saul toni willa"
)
THINGS = BASIC_THINGS + listed(
    "wedding audit haircut interview match party review seminar tour vote yoga recital picnic checkup move delivery "
    "inspection hearing launch lunch training survey museum camp"
)
ASKED = (
    "what day is the {thing} for {name}",
    "when is the {thing} for {name}",
    "tell me the day of the {thing} for {name}",
)
PAIRS = tuple(itertools.product(THINGS, NAMES))
MAILS = 1000
LISTED = 4
POINTING = 0.2
"""Of the mails that nobody asks for, those that point to another one."""
TWO_MAILS = 0.4
"""Of the questions, those whose answer stands in two mails."""
MAX_CALLS = 8
"""The main agent's model calls."""
COMPACT_AFTER = 3
"""Calls of the main agent after which its notes take the place of its messages."""
NONE, NOTHING, UNKNOWN = "no mails", "nothing", "unknown"
SYSTEM = (
    "Find the answer in the mailbox. Search for words that stand only in the right mail, and read it. "
    "A mail may point to another one: search for that. Answer with a day"
)
READER = "You read one mail. Say what it says about the words: a day, or what it is the same as, or nothing"
NOTES = "write your notes"

ALWAYS = frozenset(listed("wrote on the for is"))
TOLD = ALWAYS | {"same", "day", "as"}
"""Words of mails besides names, things and days: the first ones stand in every mail."""

TOOLS = [
    function_tool("search", "keywords", "string", "List the first mails in which all of the keywords stand."),
    function_tool(
        "read", "hit", "integer", "Have one of the mails listed last read, named by its subject and its number."
    ),
    function_tool("answer", "text", "string", "Give the final answer."),
]
READ = TOOLS[1]["function"]["parameters"]
READ["properties"] = {"subject": {"type": "string"}, **READ["properties"]}
READ["required"] = ["subject", "hit"]


@dataclass(frozen=True)
class Mail:
    """What is for whom, on which day or on the same day as what. `sender` wrote it on the day `sent`."""

    sender: str
    sent: str
    thing: str
    name: str
    day: str
    same: tuple[str, str] | None = None
    """(thing, name) of the mail that says the day."""

    @property
    def subject(self) -> str:
        """As a search lists it."""
        return f"{self.thing} {self.name}"

    @property
    def body(self) -> str:
        """The text that is searched and read."""
        when = f"the same day as the {self.same[0]} for {self.same[1]}" if self.same else self.day
        return f"{self.sender} wrote on {self.sent}: the {self.thing} for {self.name} is on {when}"


@dataclass(frozen=True)
class Question:
    """A question to a mailbox. `same`: the thing and the name that its mail points to, or None."""

    id: str
    seed: int
    text: str
    thing: str
    name: str
    day: str
    same: tuple[str, str] | None


def make_question(seed: int) -> Question:
    """The question of a seed, always the same one."""
    rng = random.Random(seed)
    things, names = rng.sample(THINGS, 2), rng.sample(NAMES, 2)
    text = rng.choice(ASKED).format(thing=things[0], name=names[0])
    same = (things[1], names[1]) if rng.random() < TWO_MAILS else None
    return Question(f"mail-{seed}", seed, text, things[0], names[0], rng.choice(DAYS), same)


def questions(split: str, seed: int = 0) -> Iterator[Question]:
    """Questions of a split without end: "train", "eval" (held out) or "pretrain" (what the small model has read)."""
    start = first_seed(split, seed)
    return (make_question(start + index % 100_000) for index in itertools.count())


class Mailbox:
    """Mails by the words that stand in them."""

    def __init__(self, mails: list[Mail]) -> None:
        self.mails = mails
        self.places: dict[str, set[int]] = defaultdict(set)
        for place, mail in enumerate(mails):
            for word in (mail.sender, mail.sent, mail.thing, mail.name, *(mail.same or (mail.day,))):
                self.places[word].add(place)

    def find(self, keywords: str) -> list[Mail]:
        """The mails in which every keyword stands, in the order of the mailbox. No keyword finds none."""
        words = re.findall(r"\w+", keywords.lower())
        if not words:
            return []
        places = set(range(len(self.mails)))
        for word in words:
            if word in TOLD:  # not in the index
                places = {place for place in places if word in ALWAYS or word in self.mails[place].body.split()}
            else:
                places &= self.places.get(word, set())
        return [self.mails[place] for place in sorted(places)]


@functools.lru_cache(maxsize=128)
def mailbox_of(question: Question) -> Mailbox:
    """The question's mailbox: its one or two mails among others, no two of them about the same."""
    rng = random.Random(f"mailbox {question.seed}")
    asked = (question.thing, question.name)
    wanted = (asked, question.same)
    pairs = [pair for pair in rng.sample(PAIRS, MAILS) if pair not in wanted]
    pairs = pairs[: MAILS - (2 if question.same else 1)]
    mails = [_other(rng, pair, wanted) for pair in pairs]
    for pair in filter(None, wanted):
        mail = Mail(
            _other_name(rng, pair), rng.choice(DAYS), *pair, question.day, question.same if pair == asked else None
        )
        mails.insert(rng.randrange(len(mails) + 1), mail)
    return Mailbox(mails)


def _other_name(rng: random.Random, pair: tuple[str, str]) -> str:
    """Somebody else than whom it is about."""
    while (name := rng.choice(NAMES)) == pair[1]:
        pass
    return name


def _other(rng: random.Random, pair: tuple[str, str], wanted: tuple[tuple[str, str] | None, ...]) -> Mail:
    """A mail about something that nobody asks for."""
    same = rng.choice(PAIRS) if rng.random() < POINTING else None
    same = None if same in wanted or same == pair else same
    return Mail(_other_name(rng, pair), rng.choice(DAYS), *pair, rng.choice(DAYS), same)


@dataclass
class Research:
    """One question being worked on: what was listed last, and the answer."""

    question: Question
    keywords: str = ""
    hits: list[Mail] = field(default_factory=list)
    answer: str | None = None

    @property
    def reward(self) -> float:
        """1 for the right day, else 0."""
        return float((self.answer or "").strip().lower() == self.question.day)

    def search(self, keywords: str) -> str:
        """What the tool `search` answers: how many mails, and the subjects of the first ones."""
        found = mailbox_of(self.question).find(keywords)
        self.keywords, self.hits = keywords, found[:LISTED]
        count = str(len(found)) if len(found) < 100 else "many"
        return f"{count} mails: {listing(mail.subject for mail in self.hits)}" if found else NONE

    def brief(self, hit: object) -> str | None:
        """What the reader of a hit is told: the words that were searched, and the mail. None where there is no such hit."""
        if not isinstance(hit, int) or not 1 <= hit <= len(self.hits):
            return None
        return f"words: {self.keywords}. mail: {self.hits[hit - 1].body}"


def listing(subjects: Iterable[str]) -> str:
    """Hits with their numbers, as a search lists them."""
    return ", ".join(f"{subject} {number}" for number, subject in enumerate(subjects, 1))


def compacted(question: Question, notes: str) -> str:
    """What takes the place of the old messages."""
    return f"{question.text}. notes: {notes}"


def value_of(arguments: object) -> object:
    """What a call asks for: keywords, the number of a hit, or the answer. Empty where there is none."""
    values = arguments if isinstance(arguments, dict) else {}
    return values["hit"] if "hit" in values else next(iter(values.values()), "")
