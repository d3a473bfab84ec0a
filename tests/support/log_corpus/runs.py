"""Runs whose calls, tool calls and rewards are known, in chat completions' own form: what the files are written from."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
START = 1_777_629_600.0


def ask(text: str, **more: Any) -> Message:
    return {"role": "user", "content": text, **more}


def say(text: str) -> Message:
    return {"role": "assistant", "content": text}


def use(*calls: tuple[str, str, dict[str, Any]], text: str | None = None) -> Message:
    made = [{"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}} for i, n, a in calls]
    return {"role": "assistant", "content": text, "tool_calls": made}


def told(ident: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": ident, "content": text}


@dataclass(frozen=True)
class Known:
    """A run. ``calls``: places of the replies. The figures are written by hand, not counted from the messages."""

    name: str
    messages: list[Message]
    replies: list[int]
    tool_calls: int
    reward: float
    tools: list[dict[str, Any]] = field(default_factory=list)

    @property
    def calls(self) -> list[tuple[list[Message], Message]]:
        """What was sent, and the reply."""
        return [(self.messages[:i], self.messages[i]) for i in self.replies]

    def at(self, call: int) -> float:
        return START + 10.0 * call


WEATHER = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {}}},
    }
]
PLAIN = Known("billing", [ask("why was I charged twice?"), say("A double booking.")], [1], 0, 1.0)
TOOLS = Known(
    "trip",
    [
        {"role": "system", "content": "Be brief."},
        ask("rain in Oslo and Bergen? ☔"),
        use(("c1", "weather", {"city": "Oslo"}), ("c2", "weather", {"city": "Bergen"})),
        told("c1", "rain"),
        told("c2", '{"sky": "clear"}'),
        say("Oslo: rain. Bergen: clear 🌤"),
    ],
    [2, 5],
    2,
    0.5,
    WEATHER,
)
LONG = Known(
    "ticket",
    [
        ask("my order is late"),
        say("Which one?"),
        ask("number 7"),
        use(("c3", "weather", {}), text="I look it up."),
        told("c3", ""),
        say('It comes on "Friday".\nIs that fine?'),
        ask("yes"),
        say("Good."),
    ],
    [1, 3, 5, 7],
    1,
    0.0,
    WEATHER,
)
RUNS = (PLAIN, TOOLS, LONG)
