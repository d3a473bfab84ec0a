"""Records as the data plane would write them, in a few words."""

from __future__ import annotations

import itertools
from typing import Any

from slipstream.contract import BatchLeaseIn, RewardIn
from slipstream_proxy.log.records import CallHead, Choice, Mutation, Parsed
from slipstream_proxy.store.values import Position, RecordedCall, Rules

NOW = 1_800_000_000.0
_ids = itertools.count(1)


def new_id(prefix: str = "c") -> str:
    return f"{prefix}{next(_ids):025d}"


def call(
    episode: str = "e1",
    *,
    at: float = NOW,
    messages: list[Any] | None = None,
    prompt: list[int] | None = None,
    **kw: Any,
) -> RecordedCall:
    """A call of model ``m``; ``choices`` as [(message, ids, logprobs)]; anything else is a field of the head or of what was parsed."""
    choices = kw.pop("choices", None) or [({"role": "assistant", "content": "yes"}, [7, 8, 9], [-0.5, -0.25, -1.0])]
    task = kw.pop("task", "t1")
    parsed: dict[str, Any] = {
        "messages": messages
        if messages is not None
        else [{"role": "system", "content": "be good"}, {"role": "user", "content": "hello"}],
        "tools": kw.pop("tools", []),
        "sampling": kw.pop("sampling", {"temperature": 1.0}),
        "prompt_ids": prompt if prompt is not None else [1, 2, 3],
        "choices": [Choice(m, "stop", ids, lps) for m, ids, lps in choices],
        "untrainable": kw.pop("untrainable", None),
        "error": kw.pop("error", None),
    }
    head: dict[str, Any] = {
        "id": new_id(), "key": "-", "episode": episode, "task": task, "split": "train", "tags": {}, "model": "m", "trained": "m",
        "adapter": "m", "arm": "live", "pin": "control", "dialect": "chat", "stream": False, "at": at, "seconds": 0.5, "first_byte": 0.1,
        "status": 200, "outcome": "ok", "upstream": "http://engine", "grouped": task is not None,
    } | kw  # fmt: skip
    return RecordedCall(CallHead(**head), Parsed(**parsed))


def reward(
    episode: str = "e1",
    value: float = 1.0,
    *,
    at: float = NOW,
    key: str = "-",
    id: str | None = None,
    idem: str | None = None,
    **kw: Any,
) -> Mutation:
    given = RewardIn(value=value, key=idem, **kw).model_dump()
    return Mutation(id or new_id("m"), "reward", at, {"key": key, "episode": episode, "reward": given})


def done(episode: str = "e1", *, at: float = NOW, key: str = "-") -> Mutation:
    return Mutation(new_id("m"), "done", at, {"key": key, "episode": episode})


def mutation(op: str, data: dict[str, Any], *, at: float = NOW, id: str | None = None) -> Mutation:
    return Mutation(id or new_id("m"), op, at, data)


def at(segment: int = 0, offset: int = 0, writer: str = "data0") -> dict[str, Position]:
    return {writer: Position(segment, offset)}


def group(task: str, n: int = 2, *, value: float | None = 1.0, start: float = NOW, **kw: Any) -> list[Any]:
    """The records of ``n`` done episodes of a task."""
    found: list[Any] = []
    for i in range(n):
        name = f"{task}-{i}"
        found.append(call(name, task=task, at=start + i, done=True, **kw))
        if value is not None:
            found.append(reward(name, value + i, at=start + i, key=kw.get("key", "-")))
    return found


def want(**kw: Any) -> BatchLeaseIn:
    return BatchLeaseIn(**({"worker": "w1", "model": "m", "min_groups": 1, "max_groups": 16, "max_wait": 0.0} | kw))


def rules(**kw: Any) -> Rules:
    return Rules(**({"group_size": 2} | kw))
