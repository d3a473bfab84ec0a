"""Episodes as a set of cases has them."""

from __future__ import annotations

import json
from typing import Any

from slipstream.contract import CallRecord, EpisodeDetail


def tool_message(name: str, /, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "t", "type": "function", "function": function}]}


def recorded(episode: str, reward: float = 1.0) -> EpisodeDetail:
    """A rewarded run of one call: the tool ``find`` with the episode's name."""
    messages = [{"role": "system", "content": "Use the tool."}, {"role": "user", "content": f"task {episode}"}]
    call = CallRecord(
        id=f"c-{episode}", episode=episode, number=0, at=1.0, seconds=1.0, dialect="chat", model="m", adapter=None, status=200, outcome="ok",
        trainable=True, sampling={"temperature": 1.0, "stream": True}, messages=messages, reply=[tool_message("find", name=episode)],
    )  # fmt: skip
    return EpisodeDetail(
        id=episode, key="-", task="t", split="train", model="m", adapter=None, state="done", started=1.0, ended=2.0, calls=1,
        reward=reward, call_list=[call],
    )  # fmt: skip
