"""A small load that remembers what it was told: which calls were answered, and by which adapter."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httpx

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": n,
            "parameters": {"type": "object", "properties": {k: {"type": "string"}}, "required": [k]},
        },
    }
    for n, k in (("search", "keywords"), ("read", "id"), ("answer", "text"))
]
QUESTION = "when is the dentist for dana"


def body(stream: bool, **more: object) -> dict[str, object]:
    messages = [{"role": "system", "content": "find the mail"}, {"role": "user", "content": QUESTION}]
    return {
        "model": "inbox",
        "messages": messages,
        "tools": TOOLS,
        "max_tokens": 16,
        "temperature": 1.0,
        "stream": stream,
        **more,
    }


@dataclass
class Load:
    answered: list[str] = field(default_factory=list)
    """Call ids whose whole reply arrived."""
    adapters: dict[str, set[str]] = field(default_factory=dict)
    """Episode → adapters that answered it."""
    errors: list[str] = field(default_factory=list)

    async def call(
        self, client: httpx.AsyncClient, url: str, episode: str, task: str, stream: bool, **more: object
    ) -> bool:
        headers = {"x-slipstream-episode": episode, "x-slipstream-task": task}
        try:
            async with client.stream(
                "POST", f"{url}/v1/chat/completions", json=body(stream, **more), headers=headers
            ) as reply:
                text = (await reply.aread()).decode()
        except httpx.TransportError as e:
            self.errors.append(repr(e))
            return False
        if reply.status_code != 200:
            self.errors.append(f"{reply.status_code} {text[:200]}")
            return False
        whole = text.rstrip().endswith("data: [DONE]") if stream else bool(json.loads(text)["choices"])
        if not whole or '"error"' in text:
            self.errors.append(f"broken stream: {text[-200:]}")
            return False
        self.answered.append(reply.headers["x-slipstream-call"])
        self.adapters.setdefault(episode, set()).add(reply.headers["x-slipstream-adapter"])
        return True


async def streams(
    load: Load, url: str, count: int, stop: asyncio.Event, *, calls: int = 4, stream: bool = True, pause: float = 0.0
) -> None:
    """``count`` agents at once, each running episodes of ``calls`` calls until ``stop``."""

    async def agent(n: int) -> None:
        episode = 0
        while not stop.is_set():
            for _ in range(calls):
                await load.call(client, url, f"load-{n}-{episode}", f"task-{episode % 5}", stream)
                await asyncio.sleep(pause)
            episode += 1

    limits = httpx.Limits(max_connections=count + 4, max_keepalive_connections=count + 4)
    async with httpx.AsyncClient(timeout=120, limits=limits, trust_env=False) as client:
        await asyncio.gather(*(agent(n) for n in range(count)))
