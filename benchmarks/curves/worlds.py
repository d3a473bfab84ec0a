"""The worlds that one larger model plays at once: their words, what it reads of them, and how an episode of each goes.

A world is one of the example tasks without its agent's framework: `Conversation` is what the agent would send.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from clue import detectives, mystery
from clue import lessons as clue_lessons
from clue import make_model as clue_model
from clue import vocabulary as clue_words
from common.hermes import build_tokenizer, render
from common.making import LESSONS
from common.pretrain import Row, of_messages
from common.sampling import Conversation
from common.task import Item
from inbox import inbox, pretrain
from inbox import tokenizer as inbox_words
from mail import lessons as mail_lessons
from mail import mailbox
from mail import make_model as mail_model
from mail import players as mail_players
from mail import vocabulary as mail_words
from retail import desk
from retail import lessons as retail_lessons
from retail import make_model as retail_model
from retail import players as retail_players
from retail import vocabulary as retail_words
from transformers import PreTrainedTokenizerFast

__all__ = ["WORLDS", "World", "longest_row", "rows_of", "tokenizer_of"]

Made = Iterator[Row]


class World(NamedTuple):
    """One task: what can be said in it, what the model reads of it, and how it goes."""

    words: Callable[[], list[str]]
    pieces: Callable[[], list[str]]
    rows: Callable[[PreTrainedTokenizerFast, int, int], Made]
    """(tokenizer, seed, count) → conversations of clumsy players."""
    items: Callable[[str, int], Iterator[Item]]
    """(split, seed) → items without end."""
    start: Callable[[Item], Conversation]
    lessons: Callable[[PreTrainedTokenizerFast, int, int], list[Row]] | None = None
    """(tokenizer, seed, count) → rows that teach a skill."""


class Searching:
    """An inbox question, as the agent of `examples/inbox` works on it."""

    def __init__(self, task: inbox.Task) -> None:
        self.task, self.tools, self.done, self.reward, self.calls = task, inbox.TOOLS, False, 0.0, 0
        self.messages = [{"role": "system", "content": inbox.SYSTEM}, {"role": "user", "content": task.question}]

    def act(self, message: dict) -> None:
        """Search or read, until an answer, a reply without a call, or the fourth call."""
        self.messages.append(message)
        self.calls += 1
        self.done = self.calls >= 4 or not message.get("tool_calls")
        box = inbox.Mailbox(self.task)
        for call in message.get("tool_calls") or []:
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            if name == "answer":
                self.reward = inbox.reward(self.task, answered(arguments))
                self.done = True
                break
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": box.call(name, arguments)})
        box.close()


def answered(arguments: str) -> str:
    """The text of an `answer` call; empty when its arguments hold none."""
    try:
        return str(json.loads(arguments)["text"])
    except (ValueError, TypeError, KeyError):
        return ""


def inbox_rows(tokenizer: PreTrainedTokenizerFast, seed: int, count: int) -> Made:
    rng = random.Random(seed)
    for _ in range(count):
        task = inbox.make_task(inbox.task_seed("pretrain", rng.randrange(100_000), seed))
        yield pretrain.make_row(tokenizer, task, pretrain.transcript(task, rng)[0])


def inbox_items(split: str, seed: int) -> Iterator[inbox.Task]:
    return (inbox.make_task(inbox.task_seed(split, index, seed)) for index in range(100_000))


def clue_rows(tokenizer: PreTrainedTokenizerFast, seed: int, count: int) -> Made:
    calls = itertools.islice(detectives.transcripts(seed, count), count)
    return (clue_model.row(tokenizer, messages, reply) for messages, reply in calls)


def retail_rows(tokenizer: PreTrainedTokenizerFast, seed: int, count: int) -> Made:
    return (of_messages(tokenizer, *conversation) for conversation in retail_players.transcripts(seed, count))


def mail_rows(tokenizer: PreTrainedTokenizerFast, seed: int, count: int) -> Made:
    return (of_messages(tokenizer, *conversation) for conversation in mail_players.transcripts(seed, count))


WORLDS = {
    "inbox": World(inbox_words.words, lambda: list(inbox_words.PIECES), inbox_rows, inbox_items, Searching),
    "clue": World(
        clue_words.words,
        lambda: [clue_words.THINK, clue_words.THOUGHT, clue_words.ASK, inbox_words.PIECES[-2]],
        clue_rows, mystery.cases, clue_model.Played, clue_lessons.lessons,
    ),
    "retail": World(
        retail_words.words, retail_words.pieces, retail_rows, desk.cases, retail_model.Served, retail_lessons.lessons
    ),
    "mail": World(
        mail_words.words, mail_words.pieces, mail_rows, mailbox.questions, mail_model.Searching, mail_lessons.lessons
    ),
}  # fmt: skip


def words_of(names: tuple[str, ...]) -> list[str]:
    """Every word of the worlds, once."""
    return list(dict.fromkeys(word for name in names for word in WORLDS[name].words()))


@cache
def tokenizer_of(names: tuple[str, ...]) -> PreTrainedTokenizerFast:
    """One tokenizer for all of these worlds."""
    pieces = list(dict.fromkeys(piece for name in names for piece in WORLDS[name].pieces()))
    template = {"template": clue_words.CHAT_TEMPLATE} if "clue" in names else {}
    return build_tokenizer(words_of(names), pieces, **template)


def rows_of(names: tuple[str, ...], seed: int, count: int) -> list[Row]:
    """`count` rows: as many conversations of each world, and a quarter lessons."""
    tokenizer = tokenizer_of(names)
    learned = lessons_of(names, seed, count // LESSONS)
    share = -(-(count - len(learned)) // len(names))
    made = learned + [row for name in names for row in WORLDS[name].rows(tokenizer, seed, share)]
    random.Random(seed).shuffle(made)
    return made[:count]


def lessons_of(names: tuple[str, ...], seed: int, count: int) -> list[Row]:
    """`count` lessons at most, as many of each world that has any."""
    makers = [lessons for name in names if (lessons := WORLDS[name].lessons)]
    return [row for lessons in makers for row in lessons(tokenizer_of(names), seed, count // len(makers))]


def longest_row(names: tuple[str, ...], seed: int = 0, count: int = 200) -> int:
    """Tokens of the longest of some conversations."""
    return max(len(row.ids) for row in rows_of(names, seed, count))


def prompt_of(names: tuple[str, ...], conversation: Conversation) -> list[int]:
    """The ids that the model is asked with next."""
    return render(tokenizer_of(names), conversation.messages, conversation.tools, ask=True)
