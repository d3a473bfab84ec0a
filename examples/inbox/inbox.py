"""A mailbox in SQLite FTS5 and questions about it: the world of the inbox agent.

Each task is made from one integer seed: twelve mails ("the dentist for dana: monday") with names that are distinct
within the mailbox, and a question that one of them answers. The agent has three tools, `search`, `read` and `answer`.
Searching for the name always finds the one mail; a common word such as "the" finds all twelve, of which only two are listed.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
from dataclasses import dataclass

from common.worlds import DAYS, NAMES, THINGS, first_seed, function_tool

QUESTIONS = (
    "what day is the {thing} for {name}",
    "tell me when the {thing} for {name} is",
    "do you know when the {thing} for {name} is",
    "please tell me what day the {thing} for {name} is",
)
MAILS = 12
LISTED = 2
NOTHING = "no mail"
SYSTEM = "find the mail"

TOOLS = [
    function_tool("search", "keywords", "string", "List the first mails that contain all of the keywords."),
    function_tool("read", "id", "integer", "Read one mail."),
    function_tool("answer", "text", "string", "Give the final answer."),
]


@dataclass(frozen=True)
class Mail:
    """One mail: what is on which day for whom. `id` is its place in the mailbox, 0 to 11."""

    id: int
    thing: str
    name: str
    day: str

    @property
    def body(self) -> str:
        """The text that is searched and read."""
        return f"the {self.thing} for {self.name}: {self.day}"


@dataclass(frozen=True)
class Task:
    """A question about a mailbox. `answer` is the day that counts as right; `name` is whom it is about."""

    id: str
    seed: int
    question: str
    answer: str
    name: str
    mails: tuple[Mail, ...]


def make_task(seed: int) -> Task:
    """The task of a seed, always the same one."""
    rng = random.Random(seed)
    mails = tuple(
        Mail(i, rng.choice(THINGS), name, rng.choice(DAYS)) for i, name in enumerate(rng.sample(NAMES, MAILS))
    )
    target = rng.choice(mails)
    question = rng.choice(QUESTIONS).format(thing=target.thing, name=target.name)
    return Task(f"inbox-{seed}", seed, question, target.day, target.name, mails)


def task_seed(split: str, index: int, seed: int = 0) -> int:
    """The seed of the index-th task of a split in the run with this seed (100,000 tasks a run, 10,000 runs)."""
    if not 0 <= index < 100_000:
        raise ValueError(f"index {index} is not in 0..99999")
    return first_seed(split, seed) + index


def make_tasks(split: str, count: int, seed: int = 0) -> list[Task]:
    """`count` tasks of a split: "train", "eval" (held out) or "pretrain" (what the small model was made from)."""
    return [make_task(task_seed(split, i, seed)) for i in range(count)]


def reward(task: Task, text: str | None) -> float:
    """1.0 if and only if the text is the right day."""
    return float(text is not None and text.strip().lower() == task.answer)


class Mailbox:
    """The searchable mails of one task, in memory."""

    def __init__(self, task: Task) -> None:
        self.task = task
        # One connection is used from one place at a time; an agent's threads may differ from the maker's.
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        self._db.execute("CREATE VIRTUAL TABLE mail USING fts5(body)")
        self._db.executemany("INSERT INTO mail (rowid, body) VALUES (?, ?)", [(m.id, m.body) for m in task.mails])

    def close(self) -> None:
        """Free the database."""
        self._db.close()

    def hits(self, keywords: str) -> list[int]:
        """Ids of the first two mails that contain every keyword, in the order of the mailbox."""
        words = re.findall(r"\w+", keywords)
        if not words:
            return []
        query = " ".join(f'"{word}"' for word in words)
        rows = self._db.execute("SELECT rowid FROM mail WHERE mail MATCH ? ORDER BY rowid LIMIT ?", (query, LISTED))
        return [int(row[0]) for row in rows]

    def search(self, keywords: str) -> str:
        """What the tool `search` answers: id, thing and name of each mail found, or "no mail"."""
        found = [self.task.mails[i] for i in self.hits(keywords)]
        return "; ".join(f"mail {m.id}: {m.thing} {m.name}" for m in found) or NOTHING

    def read(self, mail_id: int) -> str:
        """What the tool `read` answers: the mail's text, or "no mail"."""
        return self.task.mails[mail_id].body if 0 <= mail_id < len(self.task.mails) else NOTHING

    def call(self, tool: str, arguments: str) -> str:
        """Run `search` or `read` with the JSON arguments of a tool call. Bad arguments answer "no mail"."""
        try:
            values = json.loads(arguments)
            if tool == "search":
                return self.search(str(values["keywords"]))
            if tool == "read":
                return self.read(int(values["id"]))
        except (ValueError, TypeError, KeyError):
            pass
        return NOTHING


def good_searcher(task: Task) -> str | None:
    """The scripted ceiling: search for the name, read the first hit, answer the day in it. Returns the answer."""
    box = Mailbox(task)
    try:
        hits = box.hits(task.name)
        return box.read(hits[0]).split()[-1] if hits else None
    finally:
        box.close()
