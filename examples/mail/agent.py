"""The research agent: built with Anthropic's SDK in the messages format, unchanged.

    ANTHROPIC_BASE_URL=http://127.0.0.1:8100 python examples/mail/agent.py --episodes 64

A sub-agent of its own reads each mail, and after a few calls the agent's notes take the place of its messages. All calls
of a run carry the same episode. It knows nothing of Slipstream but what its documentation says: three headers, and a
reward that is posted over HTTP. Elsewhere the headers mean nothing, and nobody wants the reward.
"""

from __future__ import annotations

import os
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
from anthropic import AsyncAnthropic, omit
from anthropic.types import Message, ToolUseBlock
from common.task import Played

from mail.mailbox import (
    COMPACT_AFTER,
    MAX_CALLS,
    NOTES,
    READER,
    SYSTEM,
    TOOLS,
    Question,
    Research,
    compacted,
    value_of,
)

__all__ = ["ResearchAgent"]

MAX_TOKENS = 32
ANTHROPIC_TOOLS: list[Any] = [
    {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
    for f in (tool["function"] for tool in TOOLS)
]


@dataclass
class Run:
    """One episode in progress. `messages`: what the main agent sends next."""

    research: Research
    headers: dict[str, str]
    messages: list[Any]
    calls: int = 0
    """All model calls that were answered."""


class ResearchAgent:
    """Answers questions with the model behind an endpoint that speaks Anthropic's messages."""

    def __init__(self, base_url: str | None = None, *, model: str = "model") -> None:
        """`base_url`: of the endpoint, with or without /v1."""
        url = base_url or os.environ.get("ANTHROPIC_BASE_URL", "http://127.0.0.1:8100")
        self.url = url.rstrip("/").removesuffix("/v1")
        key = os.environ.get("ANTHROPIC_API_KEY", "none")
        self.client = AsyncAnthropic(base_url=self.url, api_key=key, timeout=60)
        self.http = httpx.AsyncClient(timeout=60)
        self.model = model

    async def episode(
        self, item: Question, *, split: str = "train", tagged: bool = True, post_reward: bool = True
    ) -> Played:
        """Answer one question. Where the run is tagged, headers name it, and its reward is posted at its end."""
        episode = uuid.uuid4().hex
        tags = {"x-slipstream-episode": episode, "x-slipstream-task": item.id, "x-slipstream-split": split}
        run = Run(Research(item), tags if tagged else {}, [{"role": "user", "content": item.text}])
        await self._work(run)
        if tagged:
            await self._end(episode, run.research.reward if post_reward else None)
        return Played(run.research.reward, run.calls)

    async def _work(self, run: Run) -> None:
        """Call the model until it answers, says something else, or the calls are used up."""
        for number in range(1, MAX_CALLS + 1):
            reply = await self._ask(run, SYSTEM, run.messages, tools=True)
            uses = [block for block in reply.content if isinstance(block, ToolUseBlock)]
            run.messages.append({"role": "assistant", "content": reply.content})
            results: list[Any] = []
            for use in uses:
                value = value_of(use.input)
                if use.name == "answer":
                    run.research.answer = str(value)
                    return
                said = await self._use(run, use.name, value)
                results.append({"type": "tool_result", "tool_use_id": use.id, "content": said})
            if not uses:
                return
            run.messages.append({"role": "user", "content": results})
            if number % COMPACT_AFTER == 0 and number < MAX_CALLS:
                await self._compact(run)

    async def _use(self, run: Run, tool: str, value: object) -> str:
        """Run a tool: search the mailbox, or have the reader read a mail."""
        if tool == "search":
            return run.research.search(str(value))
        brief = run.research.brief(value) if tool == "read" else None
        if brief is None:
            return "no such hit"
        return text_of(await self._ask(run, READER, [{"role": "user", "content": brief}]))

    async def _compact(self, run: Run) -> None:
        """Have the agent write notes, and go on with the question and the notes alone."""
        run.messages[-1]["content"].append({"type": "text", "text": NOTES})
        reply = await self._ask(run, SYSTEM, run.messages, tools=True)
        run.messages = [{"role": "user", "content": compacted(run.research.question, text_of(reply))}]

    async def _ask(self, run: Run, system: str, messages: list[Any], *, tools: bool = False) -> Message:
        """One model call."""
        reply = await self.client.messages.create(
            model=self.model,
            max_tokens=MAX_TOKENS,
            system=system,
            messages=messages,
            tools=ANTHROPIC_TOOLS if tools else omit,
            extra_headers=run.headers,
        )
        run.calls += 1
        return reply

    async def _end(self, episode: str, reward: float | None) -> None:
        """Say how the run went, or only that it has ended."""
        path = f"{self.url}/slipstream/v1/episodes/{episode}"
        if reward is None:
            reply = await self.http.post(f"{path}/done", json={})
        else:
            reply = await self.http.post(f"{path}/rewards", json={"value": reward})
        if reply.status_code != 404:  # another server than Slipstream's
            reply.raise_for_status()

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()
        await self.http.aclose()


def text_of(reply: Message) -> str:
    """What a reply says."""
    return "".join(block.text for block in reply.content if block.type == "text").strip()


if __name__ == "__main__":
    from common.command import arguments, main

    from mail.task import TASK

    sys.exit(main(TASK, arguments(__doc__), variable="ANTHROPIC_BASE_URL"))
