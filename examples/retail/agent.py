"""The service agent: built with the OpenAI Agents SDK, unchanged.

    OPENAI_BASE_URL=http://127.0.0.1:8100/v1 python examples/retail/agent.py --episodes 64

It knows nothing of Slipstream but what its documentation says: three headers, and a reward that is posted over HTTP.
Elsewhere the headers mean nothing, and nobody wants the reward.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
from agents import (
    Agent,
    FunctionTool,
    ModelSettings,
    OpenAIChatCompletionsModel,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
)
from agents.exceptions import MaxTurnsExceeded, ModelBehaviorError
from common.task import Played
from openai import AsyncOpenAI

from retail.desk import MAX_CALLS, Case, Desk
from retail.domains import DOMAINS, Domain, number_of, tools_of

__all__ = ["ServiceAgent"]

MAX_TOKENS = 32


class Counted(RunHooks[Desk]):
    """Counts the model's replies."""

    def __init__(self) -> None:
        self.calls = 0

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        self.calls += 1


class ServiceAgent:
    """Serves customers with the model behind an OpenAI-compatible endpoint."""

    def __init__(self, base_url: str | None = None, *, model: str = "model") -> None:
        self.base_url = base_url or os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8100/v1")
        key = os.environ.get("OPENAI_API_KEY", "none")
        self.client = AsyncOpenAI(base_url=self.base_url, api_key=key, timeout=60)
        self.http = httpx.AsyncClient(timeout=60)
        chat = OpenAIChatCompletionsModel(model, self.client)
        self.agents = {name: agent_of(domain, chat) for name, domain in DOMAINS.items()}

    async def episode(
        self, item: Case, *, split: str = "train", tagged: bool = True, post_reward: bool = True
    ) -> Played:
        """Serve one customer. Where the run is tagged, headers name it, and its reward is posted at its end."""
        episode = uuid.uuid4().hex
        tags = {"x-slipstream-episode": episode, "x-slipstream-task": item.id, "x-slipstream-split": split}
        desk, counted = Desk(item), Counted()
        await self._serve(desk, counted, tags if tagged else None)
        if tagged:
            await self._end(episode, desk.reward if post_reward else None)
        return Played(desk.reward, counted.calls)

    async def _serve(self, desk: Desk, counted: Counted, headers: dict[str, str] | None) -> None:
        """Talk with the customer until he or she leaves, or the calls are used up."""
        settings = RunConfig(model_settings=ModelSettings(extra_headers=headers), tracing_disabled=True)
        said: list[Any] = [{"role": "user", "content": desk.opening()}]
        while not desk.left and counted.calls < MAX_CALLS:
            try:
                result = await Runner.run(
                    self.agents[desk.case.domain.name],
                    said,
                    context=desk,
                    max_turns=MAX_CALLS - counted.calls,
                    hooks=counted,
                    run_config=settings,
                )
            except (MaxTurnsExceeded, ModelBehaviorError):  # it went on and on, or called a tool that is none
                return
            answer = desk.say(str(result.final_output))
            said = [*result.to_input_list(), {"role": "user", "content": answer}]

    async def _end(self, episode: str, reward: float | None) -> None:
        """Say how the run went, or only that it has ended."""
        path = f"{self.base_url.removesuffix('/v1')}/slipstream/v1/episodes/{episode}"
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


def agent_of(domain: Domain, model: OpenAIChatCompletionsModel) -> Agent[Desk]:
    """The agent of one company: its policy and its tools."""
    return Agent(
        name=domain.name,
        instructions=domain.policy,
        model=model,
        model_settings=ModelSettings(max_tokens=MAX_TOKENS),
        tools=[tool_of(tool["function"]) for tool in tools_of(domain)],
    )


def tool_of(function: dict[str, Any]) -> FunctionTool:
    """A tool as the SDK wants it: it runs on the desk that the run is about."""

    async def invoke(context: RunContextWrapper[Desk], arguments: str) -> str:
        try:
            values = json.loads(arguments)
        except ValueError:
            values = None
        return context.context.call(function["name"], number_of(values))

    return FunctionTool(
        name=function["name"],
        description=function["description"],
        params_json_schema=function["parameters"],
        on_invoke_tool=invoke,
        strict_json_schema=False,
    )


if __name__ == "__main__":
    from common.command import arguments, main

    from retail.task import TASK

    sys.exit(main(TASK, arguments(__doc__)))
