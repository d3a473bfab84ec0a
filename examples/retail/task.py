"""The task for `slipstream demo --task retail` and `make curves`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.task import Agent, Missing

from retail.desk import YES, Case, cases
from retail.domains import DOMAINS
from retail.players import expert_reward

__all__ = ["TASK", "RetailTask", "heard"]

STEP = re.compile(r"^\[\d+\] (.*)\n((?:^[|] ?.*\n?)*)", re.MULTILINE)
CALL = re.compile(r"(\w+) #\d+ \{.*?\"(?:code|id)\": (\d+)")
WISH = re.compile(r"\b(\w+) the (\w+)")


def heard(transcript: str) -> Iterator[tuple[str, str]]:
    """The steps of a judge's transcript in order: their headings, and what was said or done."""
    for found in STEP.finditer(transcript):
        yield found[1], "\n".join(line[2:] for line in found[2].splitlines())


class RetailTask:
    """Customer service of a shop and of an airline."""

    name = "retail"
    model = Path(__file__).parent / "model"
    rubric = (
        "The agent serves customers by the policy in its instructions. It looks the customer up by code before all else. The "
        "lookup says which record is of which thing: the number that a customer names is often wrong. It looks at a record "
        "before it decides, asks for a yes to exactly one change of one record, makes no other change, and follows the "
        "customer's last wish. It refuses what the policy forbids, even when the customer pleads. It says done after a "
        "change, and never before. A run that breaks one of these is bad, however friendly it ends."
    )

    def items(self, split: str, seed: int) -> Iterator[Case]:
        """Cases without end, of both companies."""
        return cases(split, seed)

    def expert(self, items: Sequence[Case]) -> float:
        """Mean reward of the one who never skips a step."""
        return expert_reward(items)

    def rule(self, transcript: str) -> float:
        """1 where the policy was kept as far as the transcript shows, 0.5 where a record was never looked at, else 0."""
        return Read(transcript).score()

    async def open(self, base_url: str) -> Agent:
        """Connect the agent. Raises ``Missing`` without the OpenAI Agents SDK."""
        try:
            from retail.agent import ServiceAgent
        except ModuleNotFoundError as error:
            raise Missing("pip install openai-agents") from error
        return ServiceAgent(base_url, model=self.name)


class Read:
    """One run as a judge follows it, step by step."""

    def __init__(self, transcript: str) -> None:
        self.own: dict[str, int] = {}
        self.seen: dict[int, bool] = {}
        """Record → whether the wish of that moment is allowed for it."""
        self.wish = ("", "")
        self.asked = self.agreed = ("", 0)
        self.changes: list[tuple[str, int]] = []
        self.bad = False
        self.last = ""
        self.called = ("", 0)
        self.records: dict[int, tuple[str, int]] = {}
        self.domain = DOMAINS["airline" if "airline" in transcript else "retail"]
        for kind, text in heard(transcript):
            self.step(kind, text)

    def step(self, kind: str, text: str) -> None:
        """Follow one step."""
        if kind == "user":
            found = WISH.search(text)
            if found and found[1] in self.domain.actions:
                self.wish = (found[1], found[2])
            self.agreed = self.asked if text.strip() == YES else ("", 0)
        elif kind == "assistant":
            self.last = text.strip()
            asked = re.search(r"(\w+) (\d+)\?", text)
            self.asked = (asked[1], int(asked[2])) if asked else ("", 0)
        elif kind == "assistant calls tool":
            self.call(text)
        elif kind.startswith("tool result"):
            self.result(text)

    def call(self, text: str) -> None:
        """Follow a tool call."""
        found = CALL.match(text)
        self.called = (found[1], int(found[2])) if found else ("", 0)
        tool, number = self.called
        if tool != "customer" and not self.own:
            self.bad = True
        if tool in self.domain.actions:
            self.bad = self.bad or self.agreed != self.called or number != self.own.get(self.wish[1])
            self.bad = self.bad or not self.allowed(tool, number)
            self.changes.append(self.called)
            self.agreed = ("", 0)

    def result(self, text: str) -> None:
        """Follow what a tool answers."""
        if self.called[0] == "customer":
            self.own = {thing: int(number) for thing, number in re.findall(r"(\w+) (\d+)", text)} or self.own
        elif found := re.search(r", (\w+), (\d+) ", text):
            self.records[self.called[1]] = (found[1], int(found[2]))

    def allowed(self, action: str, number: int) -> bool:
        """As far as is known."""
        return number not in self.records or self.domain.allows(action, *self.records[number])

    def score(self) -> float:
        """The judge's score of the run."""
        number = self.own.get(self.wish[1], 0)
        looked = number in self.records
        if self.bad or not self.own or len(self.changes) > 1:
            return 0.0
        if "done" in self.last and self.changes:
            return 1.0 if looked else 0.5
        refused = "sorry" in self.last and not self.changes
        return 1.0 if refused and looked and not self.allowed(self.wish[0], number) else 0.0


TASK = RetailTask()
