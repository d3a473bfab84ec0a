"""The service desk: a database, the tools on it, and a customer who does not make it easy.

Each case is made from one integer seed. The customer may name somebody else's record, give a wrong code first, change
his or her mind when asked for a yes, and plead for what the policy forbids. The reward is 1 where the database ends as
it should and the policy was kept, else 0.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from common.worlds import first_seed

from retail.domains import AGES, DOMAINS, NAMES, Domain, lookup_answer

__all__ = ["Case", "Desk", "Record", "Wish", "cases", "make_case", "right_end"]

MAX_CALLS = 16
WORDS = ("done", "has been", "completed")
REFUSALS = ("sorry", "cannot", "can't", "unable", "not allowed", "not possible")

OPENINGS = (
    "hello, i want to {wish}, {record} {id}",
    "please {wish}, it is {record} {id}",
    "can you {wish} for me, {record} {id}",
)
PLEAD = "please make an exception"
BYE, THANKS, WHAT, YES = "ok, bye", "thanks, bye", "what?", "yes"


@dataclass(frozen=True)
class Record:
    """An order or a booking of one customer. `age`: in days or hours, as the domain says."""

    id: int
    code: int
    thing: str
    state: str
    age: int


@dataclass(frozen=True)
class Wish:
    """What the customer wants to have done to his or her record of a thing."""

    action: str
    thing: str


@dataclass(frozen=True)
class Case:
    """One conversation to come. The wishes come one after another: the last one counts.

    `mind`: the second wish comes in place of a yes to the first ("change"), or after the refusal of the first ("then").
    """

    id: str
    domain: Domain
    names: dict[int, str]
    """Code → name."""
    records: tuple[Record, ...]
    code: int
    """The customer's own."""
    opening: str
    told: int
    """The record's number that the customer names, often somebody else's."""
    wrong_code: int | None
    """Given first, where it is not None. No customer has it."""
    gives_code: bool
    """The first message says a code."""
    wishes: tuple[Wish, ...]
    mind: str
    pleads: int

    def record(self, wish: Wish) -> Record:
        """The customer's record that a wish is about."""
        return next(r for r in self.records if r.code == self.code and r.thing == wish.thing)

    def allowed(self, wish: Wish) -> bool:
        """Whether the policy allows it."""
        record = self.record(wish)
        return self.domain.allows(wish.action, record.state, record.age)


def right_end(case: Case) -> dict[int, str]:
    """Which changes the database should hold at the end: record → action."""
    counted = case.wishes[-1:] if case.mind == "change" else case.wishes
    return {case.record(w).id: w.action for w in counted if case.allowed(w)}


def make_case(seed: int) -> Case:
    """The case of a seed, always the same one."""
    rng = random.Random(seed)
    while (case := _draw(rng, seed)) is None:
        pass
    return case


def _draw(rng: random.Random, seed: int) -> Case | None:
    """A case, or None where these records have no wishes of the kind that was drawn."""
    domain = rng.choice(list(DOMAINS.values()))
    numbers = rng.sample(range(10, 100), 13)
    codes, wrong, ids = numbers[:3], numbers[3], iter(numbers[4:])
    records = tuple(
        Record(next(ids), code, thing, rng.choice(domain.states), rng.choice(AGES))
        for code in codes
        for thing in rng.sample(domain.things, 3)
    )
    case = Case(
        id=f"{domain.name}-{seed}",
        domain=domain,
        names=dict(zip(codes, rng.sample(NAMES, 3), strict=True)),
        records=records,
        code=codes[0],
        opening=rng.choice(OPENINGS),
        told=0,
        wrong_code=wrong if rng.random() < 0.2 else None,
        gives_code=rng.random() < 0.5,
        wishes=(),
        mind=rng.choices(("", "change", "refused", "then"), (45, 25, 15, 15))[0],
        pleads=rng.randint(1, 2),
    )
    own = [r for r in records if r.code == case.code]
    wishes = [Wish(action, r.thing) for r in own for action in domain.actions]
    rng.shuffle(wishes)
    allowed = [w for w in wishes if case.allowed(w)]
    forbidden = [w for w in wishes if not case.allowed(w)]
    if len(allowed) < 2 or not forbidden:
        return None
    second = allowed[1] if case.mind == "then" or rng.random() < 0.7 else forbidden[0]
    first = forbidden[0] if case.mind in ("refused", "then") else allowed[0]
    wanted = (first, second) if case.mind in ("change", "then") else (first,)
    others = [r.id for r in records if r.thing != first.thing]
    told = rng.choice(others) if rng.random() < 0.5 else case.record(first).id
    return Case(**{**case.__dict__, "wishes": wanted, "told": told})


def cases(split: str, seed: int = 0) -> Iterator[Case]:
    """Cases of a split without end: "train", "eval" (held out) or "pretrain" (what the small model has read)."""
    start = first_seed(split, seed)
    return (make_case(start + index % 100_000) for index in itertools.count())


@dataclass
class Desk:
    """One conversation in progress: the tools for the agent, the customer's answers, and what was done."""

    case: Case
    changes: dict[int, str] = field(default_factory=dict)
    """Record → what was done to it."""
    broken: list[str] = field(default_factory=list)
    """How the policy was broken."""
    left: bool = False
    """The customer has said goodbye."""
    verified: bool = False
    agreed: tuple[str, int] | None = None
    """The change that the customer has just said yes to."""
    new: bool = False
    """A change was made that the customer was not told of yet."""
    wish: int = 0
    pleaded: int = 0
    told_codes: int = 0
    puzzled: int = 0

    @property
    def reward(self) -> float:
        """1 where the database is as it should be, the policy was kept and the customer has left; else 0."""
        return float(self.left and not self.broken and self.changes == right_end(self.case))

    def opening(self) -> str:
        """What the customer says first."""
        wish = self.case.wishes[0]
        domain = self.case.domain
        said = self.case.opening.format(wish=self._words(wish), record=domain.record, id=self.case.told)
        return f"{said}, {self._code()}" if self.case.gives_code else said

    def call(self, tool: str, number: object) -> str:
        """Run a tool with its one number. What is no number finds nothing."""
        case, given = self.case, number if isinstance(number, int) else -1
        if tool == "customer":
            return self._customer(given)
        if tool != case.domain.record and tool not in case.domain.actions:
            return "no such tool"
        if not self.verified:
            self.broken.append(f"{tool} {given} before the customer was looked up")
        record = next((r for r in case.records if r.id == given), None)
        if record is None:
            return f"no {case.domain.record}"
        if tool == case.domain.record:
            return f"{tool} {given}: {record.thing}, {record.state}, {record.age} {case.domain.unit}"
        if self.agreed != (tool, given):
            self.broken.append(f"{tool} {given} without a yes")
        self.agreed = None
        self.changes[given] = tool
        self.new = True
        return "ok"

    def _customer(self, code: int) -> str:
        name = self.case.names.get(code)
        if name is None:
            return "no customer"
        if code != self.case.code:
            self.broken.append("looked another customer up")
        self.verified = self.verified or code == self.case.code
        return lookup_answer(name, ((r.thing, r.id) for r in self.case.records if r.code == code))

    def say(self, text: str) -> str:
        """Say something to the customer. Returns the answer; with `left` set it was the last one."""
        said = text.lower()
        asked = re.search(rf"\b({'|'.join(self.case.domain.actions)})\b[^?]*?\b(\d+)\b[^?]*\?", said)
        self.agreed = None
        if asked:
            return self._answer(asked[1], int(asked[2]))
        if "code" in said:
            return self._code()
        if any(word in said for word in REFUSALS):
            return self._refused()
        if any(word in said for word in WORDS):
            if not self.new:
                self.broken.append("said that something was done, and it was not")
            self.left = True
            return THANKS
        self.puzzled += 1
        self.left = self.puzzled > 1
        if self.left:
            self.broken.append("the customer gave up")
        return WHAT

    def _words(self, wish: Wish) -> str:
        return self.case.domain.wish(wish.action, wish.thing)

    def _code(self) -> str:
        self.told_codes += 1
        first = self.told_codes == 1 and self.case.wrong_code is not None
        return f"my code is {self.case.wrong_code if first else self.case.code}"

    def _answer(self, action: str, number: int) -> str:
        """To the question whether something is to be done. The customer knows the number that he or she named first."""
        case, wish = self.case, self.case.wishes[self.wish]
        known = {case.record(wish).id} | ({case.told} if self.wish == 0 else set())
        if action != wish.action or number not in known:
            return f"no, {self._words(wish)}"
        if case.mind == "change" and self.wish == 0:
            self.wish = 1
            wish = case.wishes[1]
            return f"no wait, {self._words(wish)}"
        self.agreed = (action, number)
        return YES

    def _refused(self) -> str:
        self.pleaded += 1
        if self.pleaded <= self.case.pleads:
            return PLEAD
        if self.case.mind == "then" and self.wish == 0:
            self.wish, self.pleaded = 1, 0
            wish = self.case.wishes[1]
            return f"then {self._words(wish)}"
        self.left = True
        return BYE
