"""The neutral tree that every form is read into: a run has talks. A talk says which messages were sampled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from slipstream.contract import name_of, tag_text
from slipstream_chat.messages import Message, plain_key, with_ids
from slipstream_chat.report import Place, Report, Value

YEAR_2100 = 4_102_444_800.0


@dataclass(slots=True)
class Told:
    """What a log says of one reply, beside its text. Times in seconds."""

    at: float | None = None
    seconds: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    model: str | None = None
    kind: str | None = None
    """``main`` or ``subagent``, where the log says it."""

    @classmethod
    def between(
        cls, begin: float | None, end: float | None, counts: tuple[int | None, int | None], model: Value
    ) -> Told:
        """``counts``: the tokens of prompt and completion."""
        seconds = None if begin is None or end is None else max(0.0, end - begin)
        return cls(begin, seconds, *counts, str(model) if model else None)

    def body(self, message: int) -> dict[str, Value]:
        named = {"at": self.at, "seconds": self.seconds, "model": self.model, "kind": self.kind}
        named |= {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}
        return {"message": message} | {k: v for k, v in named.items() if v is not None}


@dataclass(slots=True)
class ModelCall:
    """One call of a model: what it was sent, and its replies (several where more than one choice was asked for)."""

    messages: list[Message]
    replies: list[Message]
    told: Told = field(default_factory=Told)
    tools: list[Value] | None = None


@dataclass(slots=True)
class Talk:
    """A conversation. ``replies``: place of each message that the model sampled → what the log says of it."""

    messages: list[Message]
    replies: dict[int, Told]
    tools: list[Value] | None = None


@dataclass(slots=True)
class LogRun:
    """An episode to be."""

    where: str
    id: str | None = None
    task: str | None = None
    split: str = "train"
    model: str | None = None
    at: float | None = None
    tags: dict[str, Value] = field(default_factory=dict)
    reward: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    talks: list[Talk] = field(default_factory=list)
    calls: list[ModelCall] = field(default_factory=list)
    """Where the log has calls, not conversations: ``bodies`` makes talks of them."""
    whole: dict[str, Value] | None = None
    """An episode as ``slipstream export`` wrote it; it goes back as it is."""
    share: float = 1.0
    """How much of the file is read with this run, 0 … 1."""
    file: str = ""
    row: int = 0
    """Its place among the file's rows, from 1; 0: it is of several."""

    @property
    def empty(self) -> str:
        """Why it has no bodies."""
        if any(m.get("weight") == 0 for talk in self.talks for m in talk.messages):
            return "each of its replies has the weight 0, so the model would learn from none"
        return "no model call with messages and a reply; was it recorded with its content?"

    def bodies(self, task: str | None, report: Report) -> list[dict[str, Value]]:
        """Bodies of the import route, one for each talk; the first has the rewards. Empty: nothing was sampled."""
        talks = [t for t in [*self.talks, *talks_of(self.calls, Place(report, self.where))] if t.replies]
        if not talks:
            return []
        ident = name_of(self.id) if self.id else f"import-{digest([t.messages for t in talks], self.task)}"
        named = self.task or task
        made: list[dict[str, Value]] = []
        for talk in talks:
            times = [told.at for told in talk.replies.values() if told.at is not None]
            at = self.at if self.at is not None else min(times, default=None)
            models = [told.model for told in talk.replies.values() if told.model]
            body: dict[str, Value] = {
                "id": ident,
                "task": name_of(named) if named else None,
                "split": self.split,
                "model": tag_text(self.model or (models[0] if models else "")) or None,
                "messages": talk.messages,
                "tools": talk.tools,
                "tags": labels(self.tags, Place(report, self.where)),
                "replies": [told.body(place) for place, told in sorted(talk.replies.items())],
            }
            made.append(body | ({} if at is None else {"at": min(at, YEAR_2100)}))
        metrics = {name_of(name): value for name, value in self.metrics.items() if name}
        made[0] |= {"reward": self.reward} | ({"metrics": metrics} if metrics else {})
        return made


def labels(named: Mapping[str, Value], place: Place) -> dict[str, str]:
    """Tags, of what has a name and a plain value."""
    kept: dict[str, str] = {}
    for name, value in named.items():
        if value is None or value == "":
            continue
        value = value.isoformat() if isinstance(value, date) else value
        if not isinstance(value, str | int | float) or not name:
            place.drop(f"tag {name}", "a tag is text, this is a list or an object")
            continue
        text = tag_text(value if isinstance(value, str) else json.dumps(value))
        if text:
            kept[name_of(name)] = text
    return kept


def digest(*parts: object) -> str:
    """16 hex digits, a function of what the parts say."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def said(messages: Sequence[Message], tools: list[Value] | None = None, told: Told | None = None) -> Talk:
    """A conversation in which the model sampled each of the assistant's messages, but those of weight 0."""
    kept = with_ids(messages)
    replies = {
        i: Told() if told is None else told
        for i, m in enumerate(kept)
        if m.get("role") == "assistant" and m.get("weight") != 0
    }
    return Talk(kept, replies, tools)


def talks_of(calls: Sequence[ModelCall], place: Place) -> list[Talk]:
    """An agent sends its history again, so a call's reply stands in the messages of the next one.

    A call is found in the latest call that repeats its messages, however the history spells them. No message becomes
    a reply but those that a call sampled.
    """
    ordered = sorted(calls, key=lambda c: c.told.at or 0.0)
    found: list[tuple[Talk, list[str]]] = []
    for call in reversed(ordered):
        for reply in call.replies:
            messages = with_ids([*call.messages, reply])
            keys = [plain_key(m) for m in messages]
            at = len(keys) - 1
            same = [t for t, of in found if of[: at + 1] == keys]
            home = next((t for t in same if at not in t.replies and (not call.tools or t.tools == call.tools)), None)
            if home is not None:
                home.replies[at] = call.told
                home.messages[at] = home.messages[at] | {k: v for k, v in messages[at].items() if k != "tool_calls"}
            elif any(len(t.messages) == at + 1 and t.tools == call.tools for t in same):
                place.drop("a call", "it repeats another call of its run word for word")
            else:
                found.append((Talk(messages, {at: call.told}, call.tools), keys))
    return [talk for talk, _ in reversed(found)]
