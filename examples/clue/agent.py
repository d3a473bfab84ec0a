"""The detective: a pydantic-ai agent with one tool, and pydantic-ai's stock OpenAI model.

    OPENAI_BASE_URL=http://127.0.0.1:8100/v1 python examples/clue/agent.py --episodes 64 --concurrency 16

It reads a case, may ask a witness about one word, says who did it, and then answers two more questions about the case. It
knows nothing of Slipstream but what its README says: three headers, and a reward that is posted over HTTP.
"""

from __future__ import annotations

import os
import re
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
from common.task import Played
from openai import AsyncOpenAI
from pydantic_ai import Agent, RunContext
from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RunUsage, UsageLimits

from clue.mystery import NOBODY, SYSTEM, Case, score

__all__ = ["ClueAgent"]

MAX_CALLS = 4
MAX_TOKENS = 48
CONNECTIONS = 256


@dataclass
class Desk:
    """What one episode has on its desk: the case, and whether the witness has been heard."""

    case: Case
    heard: list[str] = field(default_factory=list)


detective: Agent[Desk, str] = Agent(deps_type=Desk, instructions=SYSTEM)


@detective.tool
def ask(desk: RunContext[Desk], about: str) -> str:
    """Ask the witness about a room, a time, a weapon or a person. The witness answers once."""
    told = NOBODY if desk.deps.heard else desk.deps.case.testimony(about)
    desk.deps.heard.append(told)
    return told


class ClueAgent:
    """Works on cases with the model behind an OpenAI-compatible endpoint."""

    def __init__(self, base_url: str | None = None, *, model: str = "model") -> None:
        self.base_url = base_url or os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8100/v1")
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        self.http = httpx.AsyncClient(timeout=120, limits=limits)
        self.client = AsyncOpenAI(base_url=self.base_url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
        self.model = OpenAIChatModel(model, provider=OpenAIProvider(openai_client=self.client))

    async def episode(
        self, item: Case, *, split: str = "train", tagged: bool = True, post_reward: bool = True
    ) -> Played:
        """One case. Where the agent tags, headers name the run, and the reward is posted at its end."""
        episode = uuid.uuid4().hex
        tags = {"x-slipstream-episode": episode, "x-slipstream-task": item.id, "x-slipstream-split": split}
        settings = OpenAIChatModelSettings(max_tokens=MAX_TOKENS, extra_headers=tags if tagged else {})
        answers, usage = await self.interrogate(item, settings)
        reward = score(item, answers)
        if tagged:
            await self.finish(episode, reward if post_reward else None)
        return Played(reward, usage.requests)

    async def interrogate(self, case: Case, settings: OpenAIChatModelSettings) -> tuple[list[str], RunUsage]:
        """The answers to the case's three questions, as far as they came. What the model does wrong ends the episode."""
        desk, usage = Desk(case), RunUsage()
        limits = UsageLimits(request_limit=MAX_CALLS)
        answers: list[str] = []
        try:
            first = await detective.run(
                case.opening, model=self.model, deps=desk, model_settings=settings, usage=usage, usage_limits=limits
            )
            answers += first_words(first.output, 1)
            second = await detective.run(
                case.closing,
                model=self.model,
                deps=desk,
                message_history=first.all_messages(),
                model_settings=settings,
                usage=usage,
                usage_limits=limits,
            )
            answers += first_words(second.output, 2)
        except (UnexpectedModelBehavior, UsageLimitExceeded):
            pass
        return answers, usage

    async def finish(self, episode: str, reward: float | None) -> None:
        """Post the reward (None: a judge scores it) and that the episode has ended."""
        path = f"{self.base_url.removesuffix('/v1')}/slipstream/v1/episodes/{episode}"
        if reward is not None:
            reply = await self.http.post(f"{path}/rewards", json={"value": reward})
            if reply.status_code == 404:  # another server than Slipstream's
                return
            reply.raise_for_status()
        reply = await self.http.post(f"{path}/done", json={})
        if reply.status_code != 404:
            reply.raise_for_status()

    async def close(self) -> None:
        """Close the connections."""
        await self.http.aclose()
        await self.client.close()


def first_words(text: str, count: int) -> list[str]:
    """So many words of an answer; "" where there are fewer."""
    return [*re.findall(r"\w+", text), *[""] * count][:count]


if __name__ == "__main__":
    from common.command import arguments, main

    from clue.task import TASK

    sys.exit(main(TASK, arguments(__doc__)))
