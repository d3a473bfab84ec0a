"""The task for `slipstream demo --task mail` and `make curves`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.task import Agent, Missing
from common.transcript import calls

from mail.mailbox import Question, questions
from mail.players import expert_reward

__all__ = ["TASK", "MailTask"]

ASKED = re.compile(r"^\| (?:what day is|when is|tell me the day of) the (\w+) for (\w+)", re.MULTILINE)
MAIL = re.compile(r"mail: \w+ wrote on \w+: the (\w+) for (\w+) is on (?:the same day as the (\w+) for (\w+)|(\w+))")


class MailTask:
    """Research in a thousand mails."""

    name = "mail"
    model = Path(__file__).parent / "model"
    rubric = (
        "The agent answers a question from a mailbox. The right answer is the day that the mail about the asked thing and "
        "name says; where that mail says the same day as something else, it is the day in the mail about that. A mail also "
        "names who wrote it and the day when it was written: those are not the answer. An answer counts only where the mails "
        "that were read bear it out. Of runs without the answer, those that read the first of two mails are better."
    )

    def items(self, split: str, seed: int) -> Iterator[Question]:
        """Questions without end, each with a mailbox of its own."""
        return questions(split, seed)

    def expert(self, items: Sequence[Question]) -> float:
        """Mean reward of the one who searches for the thing and the name, and reads what is about them."""
        return expert_reward(items)

    def rule(self, transcript: str) -> float:
        """1 for the answer that the mails bear out which the run has read, 0.2 for having read one of them, else 0."""
        asked = ASKED.search(transcript)
        mails = {(thing, name): (same, other, day) for thing, name, same, other, day in MAIL.findall(transcript)}
        if asked is None or (asked[1], asked[2]) not in mails:
            return 0.0
        same, other, day = mails[asked[1], asked[2]]
        if same:
            day = mails.get((same, other), ("", "", ""))[2]
        answers = [str(next(iter(c.arguments.values()), "")) for c in calls(transcript) if c.name == "answer"]
        return 1.0 if day and answers[-1:] == [day] else 0.2

    async def open(self, base_url: str) -> Agent:
        """Connect the agent. Raises ``Missing`` without Anthropic's SDK."""
        try:
            from mail.agent import ResearchAgent
        except ModuleNotFoundError as error:
            raise Missing("pip install anthropic") from error
        return ResearchAgent(base_url, model=self.name)


TASK = MailTask()
