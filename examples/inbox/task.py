"""The inbox task."""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from common.task import Item, Played, needs
from common.transcript import calls, said

from inbox.inbox import Task, good_searcher, make_task, reward, task_seed

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["TASK", "Inbox"]

CONNECTIONS = 64
QUESTION = re.compile(r"\bthe (\w+) for (\w+)\b(?!:)")
MAIL = re.compile(r"^the (\w+) for (\w+): (\w+)$")


class Searcher:
    """The agent of `agent.py` with its client."""

    def __init__(self, client: AsyncOpenAI, model: str) -> None:
        self.client, self.model = client, model

    async def episode(
        self, item: Item, *, split: str = "train", tagged: bool = True, post_reward: bool = True
    ) -> Played:
        """Answer one question."""
        from inbox.agent import run_episode

        result = await run_episode(
            self.client,
            cast("Task", item),
            episode_id=f"{item.id}-{uuid.uuid4().hex[:12]}",
            split=split,
            model=self.model,
            tagged=tagged,
            post_reward=post_reward,
        )
        return Played(result.reward, result.calls)

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()


class Inbox:
    """Find a mail and answer a question about it."""

    name = "inbox"
    model = Path(__file__).with_name("model")
    rubric = "1 where the last answer is the day in the mail that the question asks for, else 0."

    def items(self, split: str, seed: int) -> Iterator[Task]:
        """Mailboxes, each with a question."""
        return (make_task(task_seed(split, index % 100_000, seed)) for index in itertools.count())

    def expert(self, items: Sequence[Item]) -> float:
        """Search for the name, read the first hit, answer the day in it."""
        tasks = [cast("Task", item) for item in items]
        return sum(reward(task, good_searcher(task)) for task in tasks) / max(1, len(tasks))

    def rule(self, transcript: str) -> float:
        """1 where the answer is the day in a mail that was read and that matches the question, else 0."""
        lines = said(transcript)
        asked = next((match for line in lines if (match := QUESTION.search(line))), None)
        days = {match[3] for line in lines if (match := MAIL.match(line)) and asked and match[2] == asked[2]}
        answers = [str(call.arguments.get("text")) for call in calls(transcript) if call.name == "answer"]
        return float(bool(answers) and answers[-1].strip().lower() in days)

    async def open(self, base_url: str) -> Searcher:
        """The agent, which asks for the model by the task's name."""
        with needs("pip install openai"):
            from inbox.agent import make_client
        return Searcher(make_client(base_url, concurrency=CONNECTIONS), self.name)


TASK = Inbox()
