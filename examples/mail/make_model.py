"""Make the small model: a Qwen3-shaped one that has read the research of mostly clumsy players.

    python examples/mail/make_model.py OUT --device cuda

Questions, weights and their order come from the seed. The last line of output is JSON: what the model does with
held-out questions, in process.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.making import LESSONS, Recipe, main
from common.pretrain import Row, of_messages
from common.sampling import keeping, measure
from transformers import PreTrainedTokenizerFast

from mail.lessons import lessons
from mail.mailbox import (
    COMPACT_AFTER,
    MAX_CALLS,
    NOTES,
    SYSTEM,
    TOOLS,
    Question,
    Research,
    compacted,
    questions,
    value_of,
)
from mail.players import expert_reward, reader_asked, transcripts
from mail.vocabulary import mail_tokenizer, words

tokenizer_here = functools.cache(mail_tokenizer)


def make_rows(seed: int, count: int) -> list[Row]:
    """Conversations as rows, and a share of lessons."""
    some = count // LESSONS
    played = [of_messages(tokenizer_here(), messages, tools) for messages, tools in transcripts(seed, count - some)]
    return [*played, *make_lessons(seed, some)]


def make_lessons(seed: int, count: int) -> list[Row]:
    """Lessons as rows."""
    return lessons(tokenizer_here(), seed, count)


class Searching:
    """A model's research, in process: `messages` are the main agent's, its reader's, or the request for notes."""

    def __init__(self, question: Question) -> None:
        self.research = Research(question)
        self.main: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": question.text},
        ]
        self.messages, self.tools = self.main, TOOLS
        self.done = False
        self.reward = 0.0
        self.calls = 0
        self.finds: list[bool] = []
        """Of readings and notes that name a subject of the hits: is their number its?"""

    def act(self, message: dict[str, Any]) -> None:
        """Go on with a reply: of the reader, of the note-taker, or of the main agent."""
        if self.messages is not self.main:
            self.messages, self.tools = self.main, TOOLS
            self._result(message.get("content") or "")
            return
        self.main.append(message)
        if self.main[-2]["content"] == NOTES:
            notes = message.get("content") or ""
            if noted := re.fullmatch(r"hit (\w+ \w+) (\d)", notes):
                self.look(noted[1], int(noted[2]))
            self.main[1:] = [{"role": "user", "content": compacted(self.research.question, notes)}]
            return
        self.calls += 1
        if not message.get("tool_calls"):
            self.done = True
            return
        function = message["tool_calls"][0]["function"]
        arguments = json.loads(function["arguments"])
        value = value_of(arguments)
        if function["name"] == "read" and isinstance(arguments, dict):
            self.look(arguments.get("subject"), value)
        if function["name"] == "answer":
            self.research.answer = str(value)
            self.done, self.reward = True, self.research.reward
        elif function["name"] == "read" and (brief := self.research.brief(value)):
            self.messages, self.tools = reader_asked(brief), []
        else:
            self._result(self.research.search(str(value)) if function["name"] == "search" else "no such hit")

    def look(self, subject: object, hit: object) -> None:
        """Note whether a hit was found by its subject."""
        subjects = [mail.subject for mail in self.research.hits]
        if len(subjects) > 1 and subject in subjects:
            self.finds.append(hit == subjects.index(str(subject)) + 1)

    def _result(self, text: str) -> None:
        self.main.append({"role": "tool", "tool_call_id": "call", "content": text})
        self.done = self.calls >= MAX_CALLS
        if self.calls % COMPACT_AFTER == 0:
            self.main.append({"role": "user", "content": NOTES})


def figures_of(model: Any, tokenizer: PreTrainedTokenizerFast, seed: int, count: int) -> dict[str, float]:
    """What the model does with held-out questions, in process."""
    held_out = list(islice(questions("eval", seed), count))
    begun: list[Searching] = []
    start = keeping(lambda i: Searching(held_out[i]), begun)
    figures = measure(model, tokenizer, start, items=count, k_items=min(50, count), tokens=16)
    finds = [found for searching in begun for found in searching.finds]
    return {**figures, "found": sum(finds) / max(1, len(finds)), "expert": expert_reward(held_out)}


RECIPE = Recipe(
    mail_tokenizer, words, make_rows, figures_of, rows=80_000, steps=4000, batch=256, seconds=110.0, measure=300,
    finding=True, reading=True, lessons=make_lessons, lesson_rows=20_000, lesson_steps=600, lesson_seconds=25.0,
)  # fmt: skip

if __name__ == "__main__":
    main(__doc__, RECIPE)
