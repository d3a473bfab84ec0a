"""The task for `slipstream demo --task clue` and `make curves`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.task import Agent, Missing

from clue.mystery import Case, cases, deduce, read_notes

__all__ = ["TASK", "ClueTask"]

GIVEN = re.compile(r"boddy died (by the|at|in the) (\w+)\.")
KINDS = {"by the": "with what", "at": "when", "in the": "where"}
SAID = re.compile(r"^\[\d+\] assistant\n((?:[~|] .*\n?)*)", re.MULTILINE)
"""What the agent said and thought, as a judge reads it; its calls stand under another heading."""


class ClueTask:
    """Who did it, where, when and with what."""

    name = "clue"
    model = Path(__file__).parent / "model"
    rubric = (
        "The agent is a detective. It may ask a witness about one word. The notes, and what the witness told, say who was in "
        "which room at what time, and which weapon lay in which room. boddy is the victim. Whoever was in the room of the "
        "crime at the time when boddy was there did it, with the weapon that lay there. The agent names who did it, and then "
        "answers two more questions. Score the share of the three answers that follow from the notes and the witness. An "
        "answer that does not follow from them is a guess and counts nothing, even if it sounds sure."
    )

    def items(self, split: str, seed: int) -> Iterator[Case]:
        """Cases without end."""
        return cases(split, seed)

    def expert(self, items: Sequence[Case]) -> float:
        """Mean reward of the detective who never errs."""
        from clue.detectives import expert_reward

        return expert_reward(items)

    def rule(self, transcript: str) -> float:
        """The share of the three answers that follow from the notes in the transcript."""
        told = GIVEN.search(transcript)
        if told is None:
            return 0.0
        given = KINDS[told[1]]
        known = deduce(given, told[2], read_notes(SAID.sub("", transcript)))
        questions = ["who", *(q for q in ("where", "when", "with what") if q != given)]
        texts = [re.sub(r"^~ .*\n?|^\| ", "", said, flags=re.MULTILINE).split() for said in SAID.findall(transcript)]
        first, second = [*texts, [], []][:2]
        answers = [*first, ""][:1] + [*second, "", ""][:2]
        return (
            sum(
                bool(right) and right == said for right, said in zip(map(known.answer, questions), answers, strict=True)
            )
            / 3
        )

    async def open(self, base_url: str) -> Agent:
        """Connect the agent. Raises ``Missing`` without pydantic-ai."""
        try:
            from clue.agent import ClueAgent
        except ModuleNotFoundError as error:
            raise Missing('pip install "pydantic-ai-slim[openai]"') from error
        return ClueAgent(base_url, model=self.name)


TASK = ClueTask()
