"""Groups made by hand, for the judge's tests."""

from __future__ import annotations

from typing import Any

from slipstream.contract import Group, GroupEpisode, GroupKind, Reward, Split
from slipstream_judge.text.bare_groups import make_episode

TOOLS = [{"type": "function", "function": {"name": "search", "description": "Look.", "parameters": {"type": "object"}}}]


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def calls_tool(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}],
    }


def result(id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


def run(quality: float | str, *, id: str = "x", filler: str = "") -> list[dict[str, Any]]:
    """Two calls: a tool call, and an answer that says its quality."""
    start = [said("system", "Be brief."), said("user", "What is the capital?")]
    asks = calls_tool(f"call-{id}", "search", '{"q": "capital"}')
    more = [*start, asks, result(f"call-{id}", f"a result {filler}")]
    answer = quality if isinstance(quality, str) else f"QUALITY {quality}"
    return [
        {"messages": start, "reply": [asks], "tools": TOOLS},
        {"messages": more, "reply": [said("assistant", answer)], "tools": TOOLS},
    ]


def episode(id: str, calls: list[dict[str, Any]], task: str | None = "t1", **rewards: float) -> GroupEpisode:
    made = make_episode(id, task, calls)
    made.rewards = [Reward(name=n, value=v, source="agent", episode=id, at=1.0) for n, v in rewards.items()]
    return made


def group(id: str, episodes: list[GroupEpisode], kind: GroupKind = GroupKind.TASK, task: str | None = "t1") -> Group:
    return Group(id=id, kind=kind, key="-", task=task, split=Split.TRAIN, model="m", episodes=episodes)


def quality_group(id: str, qualities: list[float], **more: Any) -> Group:
    return group(id, [episode(f"{id}-{n}", run(q, id=f"{id}-{n}", **more)) for n, q in enumerate(qualities)])
