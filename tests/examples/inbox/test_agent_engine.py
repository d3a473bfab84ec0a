"""The same agent straight against real vLLM, which knows nothing of episodes or rewards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from inbox import agent


@pytest.mark.engine
def test_the_agent_runs_against_plain_vllm(engine: Any) -> None:
    """No episode fails, the base model succeeds at its usual rate, and prompts continue token by token."""
    outcomes: list[agent.Result | Exception] = []

    async def run() -> None:
        async with agent.make_client(f"{engine.url}/v1") as client:
            await agent.run_all(
                agent.schedule("eval", 17, 1, 96),
                lambda task, episode: agent.run_episode(
                    client,
                    task,
                    episode_id=episode,
                    model=engine.model,
                    extra_body={"return_token_ids": True, "seed": task.seed % 2**31},
                    keep_replies=True,
                ),
                concurrency=16,
                on_result=outcomes.append,
            )

    asyncio.run(run())
    done = [outcome for outcome in outcomes if isinstance(outcome, agent.Result)]
    assert [outcome for outcome in outcomes if isinstance(outcome, Exception)] == []
    assert len(done) == 96
    assert 0.1 <= sum(result.reward for result in done) / len(done) <= 0.5
    assert not any(result.reward_posted for result in done)
    for result in done:
        for before, after in zip(result.replies, result.replies[1:], strict=False):
            sent = [*before.prompt_token_ids, *before.choices[0].token_ids]
            assert after.prompt_token_ids[: len(sent)] == sent
