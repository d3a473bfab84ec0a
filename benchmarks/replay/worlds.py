"""The inbox and the retail desk as a replay's bench needs them: runs that are recorded, and what the next step should be.

A user's function for ``--by`` knows the task. ``inbox_step`` and ``retail_step`` are such functions: 1 where a reply
does what a careful agent would do at this prompt, else 0. The reward of a run is the world's own, and knows nothing of them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slipstream.contract import CallRecord
from slipstream.operate.demo.task import examples_dir, load_task
from slipstream_replay.comparison import calls_of

load_task("inbox")  # puts the examples onto the path
from inbox import inbox
from inbox.agent import MAX_CALLS, MAX_TOKENS, answer_text
from inbox.task import MAIL, QUESTION
from retail import desk, players
from retail.domains import DOMAINS, number_of, tools_of

Message = dict[str, Any]
Ask = Callable[[list[Message], list[Message]], Awaitable[Message]]
"""(messages, tools) → the model's message."""
TAGS = 5


async def play_inbox(ask: Ask, task: inbox.Task) -> float:
    """As ``examples/inbox/agent.py`` does it."""
    messages: list[Message] = [
        {"role": "system", "content": inbox.SYSTEM},
        {"role": "user", "content": task.question},
    ]
    box = inbox.Mailbox(task)
    try:
        for _ in range(MAX_CALLS):
            message = await ask(messages, inbox.TOOLS)
            if not message.get("tool_calls"):
                return 0.0
            messages.append(message)
            for call in message["tool_calls"]:
                name, arguments = call["function"]["name"], call["function"]["arguments"]
                if name == "answer":
                    return inbox.reward(task, answer_text(arguments))
                told = box.call(name, arguments)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": told})
    finally:
        box.close()
    return 0.0


def inbox_step(call: CallRecord, message: Message) -> float:
    """Search for the name, read the mail that is about it, answer its day."""
    asked = QUESTION.search(call.messages[1]["content"])
    assert asked is not None
    told = [m["content"] for m in call.messages if m["role"] == "tool"]
    days = [m[3] for text in told if (m := MAIL.match(text)) and m[2] == asked[2]]
    ids = [int(m[1]) for text in told for m in re.finditer(rf"mail (\d+): \w+ {asked[2]}\b", text)]
    given = calls_of(message)
    if not given or not isinstance(given[0][1], dict):
        return 0.0
    name, value = given[0][0], next(iter(given[0][1].values()), None)
    if days:
        return float(name == "answer" and str(value).strip().lower() == days[-1])
    if ids:
        return float(name == "read" and value == ids[-1])
    return float(name == "search" and asked[2] in str(value).split())


async def play_retail(ask: Ask, case: desk.Case) -> float:
    """As ``examples/retail/agent.py`` does it."""
    at = desk.Desk(case)
    messages: list[Message] = [
        {"role": "system", "content": case.domain.policy},
        {"role": "user", "content": at.opening()},
    ]
    for _ in range(desk.MAX_CALLS):
        message = await ask(messages, tools_of(case.domain))
        messages.append(message)
        found = calls_of(message)
        if found is None:
            return 0.0  # the agent's framework ends such a run
        if not found:
            messages.append({"role": "user", "content": at.say(str(message.get("content") or ""))})
            if at.left:
                break
        for (name, arguments), call in zip(found, message.get("tool_calls") or [], strict=True):
            told = at.call(name, number_of(arguments))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": told})
    return at.reward


def _asked(text: str, actions: str) -> tuple[str, int] | None:
    found = re.search(rf"\b({actions})\b[^?]*?\b(\d+)\b[^?]*\?", text.lower())
    return (found[1], int(found[2])) if found else None


def retail_step(call: CallRecord, message: Message) -> float:
    """What the expert of ``examples/retail/players.py`` would do after this conversation."""
    domain = next(d for d in DOMAINS.values() if d.policy == call.messages[0]["content"])
    servant = players.Servant(players.EXPERT, SimpleNamespace(domain=domain), random.Random(0))  # type: ignore[arg-type]
    actions, asked = "|".join(domain.actions), None
    done: tuple[str, object] = ("", None)
    for m in call.messages[1:]:
        if m["role"] == "user":
            servant.hear(m["content"])
            servant.agreed = servant.agreed and asked == (servant.action, servant.target)
            asked = None
        elif m["role"] == "tool":
            tool, number = done[0], number_of(done[1])
            if tool not in domain.actions or m["content"] == "ok":
                servant.see(tool, number if isinstance(number, int) else -1, m["content"])
        else:
            servant.move()
            done = (calls_of(m) or [done])[0]
            asked = _asked(str(m.get("content") or ""), actions)
    wanted, given = servant.move(), calls_of(message)
    if wanted.tool or given or given is None:
        return float(bool(given) and (given[0][0], number_of(given[0][1])) == (wanted.tool, wanted.number))
    text = str(message.get("content") or "").lower()
    if _asked(text, actions) or _asked(wanted.text, actions):
        return float(_asked(text, actions) == _asked(wanted.text, actions))
    for word in (players.CODE[:-1].split()[-1], players.SORRY, players.DONE):
        if word in wanted.text:
            return float(word in text)
    return 0.0


@dataclass(frozen=True)
class World:
    name: str
    play: Callable[[Ask, Any], Awaitable[float]]
    step: Callable[[CallRecord, Message], float]
    items: Callable[[str, int], Iterator[Any]]
    tag: Callable[[Any], int]
    max_tokens: int
    base: float = 0.7
    """The success of the accepted version."""

    @property
    def model(self) -> Path:
        return examples_dir() / self.name / "model"


def _inbox_items(split: str, seed: int) -> Iterator[inbox.Task]:
    return (inbox.make_task(inbox.task_seed(split, n % 100_000, seed)) for n in range(10**9))


def _inbox_tag(task: inbox.Task) -> int:
    found = QUESTION.search(task.question)
    assert found is not None
    return inbox.THINGS.index(found[1]) % TAGS


def _retail_tag(case: desk.Case) -> int:
    return case.domain.things.index(case.wishes[0].thing) % TAGS


WORLDS = {
    "inbox": World("inbox", play_inbox, inbox_step, _inbox_items, _inbox_tag, MAX_TOKENS),
    "retail": World("retail", play_retail, retail_step, desk.cases, _retail_tag, 32),
}
