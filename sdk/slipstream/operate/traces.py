"""Traces that other tools recorded, as conversations to import: what all their shapes have in common.

A trace becomes an episode. A model call stays if no later call repeats its messages: an agent sends its history again,
and each assistant message of the history is a call of its own when it is imported.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias

from slipstream.contract import name_of

Value: TypeAlias = object
"""Any value of a file that others wrote."""
Message = dict[str, Value]
KEPT = ("role", "content", "tool_calls", "tool_call_id", "name")
ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "developer": "system", "function": "tool"}
"""Names of roles elsewhere → OpenAI's."""


@dataclass(slots=True)
class ModelCall:
    """One call of a model: what it was sent, and its reply."""

    at: float | None
    messages: list[Message]
    reply: Message | None
    model: str | None = None
    tools: list[Value] | None = None

    def conversation(self) -> list[Message]:
        return [*self.messages, *([self.reply] if self.reply is not None else [])]


@dataclass(slots=True)
class Trace:
    id: str
    calls: list[ModelCall] = field(default_factory=list)
    task: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)

    def bodies(self, tool: str, task: str | None) -> list[dict[str, Value]]:
        """Bodies of the import route: the first has the rewards. Empty: no call of it has a reply."""
        calls = sorted((c for c in self.calls if c.reply is not None and c.messages), key=lambda c: c.at or 0.0)
        texts = [[json.dumps(m, sort_keys=True, default=str) for m in c.conversation()] for c in calls]
        longest = [i for i, text in enumerate(texts) if not any(_repeats(later, text) for later in texts[i + 1 :])]
        made: list[dict[str, Value]] = []
        named = self.task or task
        for i in longest:
            call = calls[i]
            body: dict[str, Value] = {
                "id": name_of(f"{tool}-{self.id}"),
                "task": name_of(named) if named else None,
                "model": call.model,
                "messages": call.conversation(),
                "tools": call.tools,
                "tags": {name_of(k): v for k, v in self.tags.items() if k and v},
            }
            if call.at is not None:
                body["at"] = call.at
            made.append(body)
        if made:
            scores = {name_of(name): value for name, value in self.scores.items()}
            made[0] |= {"reward": scores.pop("reward", None)} | ({"metrics": scores} if scores else {})
        return made


def _repeats(later: Sequence[str], text: Sequence[str]) -> bool:
    return len(later) >= len(text) and list(later[: len(text)]) == list(text)


def parsed(value: Value) -> Value:
    """What is written as JSON in a text, read; the rest as it is."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def time_of(value: Value) -> float | None:
    """Seconds since the epoch, of ISO 8601, seconds, milliseconds, micro- or nanoseconds."""
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, str) and not value.replace(".", "", 1).isdigit():
        try:
            read = datetime.fromisoformat(value)
        except ValueError:
            return None
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    if not math.isfinite(number) or number < 0:
        return None
    while number > 1e11:
        number /= 1000.0
    return number


def number_of(value: Value) -> float | None:
    """A score; True is 1 and False 0."""
    if isinstance(value, bool):
        return float(value)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def mapping(value: Value) -> dict[str, Value]:
    value = parsed(value)
    return {str(k): v for k, v in value.items()} if isinstance(value, Mapping) else {}


def listed(value: Value) -> list[Value]:
    value = parsed(value)
    return list(value) if isinstance(value, list | tuple) else []


def text_of(value: Value) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def tool_call(id: Value, name: Value, arguments: Value) -> dict[str, Value]:
    """A tool call as chat completions have it."""
    function = {"name": text_of(name), "arguments": text_of({} if arguments is None else arguments)}
    return {"id": text_of(id or name), "type": "function", "function": function}


def message_of(value: Value, role: str) -> Message | None:
    """A chat message, of one in OpenAI's shape or of a bare text. ``role``: where it names none."""
    value = parsed(value)
    if isinstance(value, str):
        return {"role": role, "content": value}
    if not isinstance(value, Mapping):
        return None
    inner = mapping(value).get("message")
    own = mapping(inner) if isinstance(inner, Mapping) else mapping(value)
    kept = {k: own[k] for k in KEPT if own.get(k) is not None}
    if not {"content", "tool_calls"} & set(kept):
        return None
    named = str(own.get("role") or own.get("type") or role).lower()
    return {"content": None} | kept | {"role": ROLES.get(named, named)}


def messages_of(value: Value, role: str) -> list[Message]:
    """Messages of whatever a tool has written down as input or output."""
    value = parsed(value)
    if isinstance(value, Mapping):
        for name in ("messages", "choices", "input", "prompt"):
            if isinstance(value.get(name), list):
                return messages_of(value[name], role)
    items = value if isinstance(value, list) else [value]
    if items and all(isinstance(item, list) for item in items):
        items = [part for item in items for part in listed(item)]
    return [m for item in items if (m := message_of(item, role)) is not None]


def nested(flat: Mapping[str, Value]) -> dict[str, Value]:
    """``{"a.0.b": 1}`` as ``{"a": {"0": {"b": 1}}}``; JSON texts and lists are read on the way."""
    made: dict[str, Value] = {}
    for name, value in flat.items():
        at = made
        *parts, last = name.split(".")
        for part in parts:
            below = at.get(part)
            if not isinstance(below, dict):
                below = at[part] = {}
            at = below
        value = parsed(value)
        value = nested(mapping(value)) if isinstance(value, Mapping) else value
        before = at.get(last)
        at[last] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return made


def in_order(value: Value) -> list[dict[str, Value]]:
    """Objects of a list, or of an object whose names are the places in it."""
    if isinstance(value, Mapping) and all(str(k).isdecimal() for k in value):
        value = [value[k] for k in sorted(value, key=lambda k: int(str(k)))]
    return [nested(mapping(item)) for item in listed(value) if isinstance(parsed(item), Mapping)]
