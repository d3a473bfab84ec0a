"""Tool-using episodes as a real proxy recorded them of a real engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support import MODEL, wait_for
from tests.support.running import run_proxy
from tests.support.tiny import make_config

from slipstream.client import Client
from slipstream_trainer.batch.rows import exact_continuations, merge_chains
from slipstream_trainer.run.export_training import train

EPISODES = 16


@pytest.mark.engine
def test_the_share_of_exact_continuations_of_recorded_tool_traffic(engine, tmp_path: Path, caplog) -> None:
    from inbox import agent
    from transformers import AutoTokenizer

    from slipstream_trainer.batch.dataset import read_rows, samples_of

    async def run(url: str) -> list[int]:
        async with agent.make_client(f"{url}/v1") as client:
            runs = (
                agent.run_episode(client, task, episode_id=name, model=engine.model)
                for task, name in agent.schedule("train", 5000, 8, EPISODES)
            )
            return [result.calls for result in await asyncio.gather(*runs)]

    file = tmp_path / "episodes.jsonl"
    with run_proxy(tmp_path / "proxy", engine.url) as proxy, Client(proxy.url) as client:
        calls = asyncio.run(run(proxy.url))
        wait_for(lambda: client.status().calls >= sum(calls) and len(client.episodes().episodes) >= EPISODES, 60)
        file.write_bytes(b"".join(client.export("jsonl")))
    samples = samples_of(read_rows(file), AutoTokenizer.from_pretrained(MODEL), sft=False)
    assert len(samples) == sum(calls) and all(s.trainable for s in samples), {s.reason for s in samples}
    exact, later = exact_continuations(samples)
    print(f"{later} later calls, {exact} continue an earlier one token by token")
    assert later == sum(calls) - EPISODES > 0
    assert exact == later, "this model's template renders tool calls as they were sampled"
    assert len(merge_chains(samples)) <= EPISODES
    config = make_config(MODEL, tmp_path / "d", max_ratio=1e6, max_kl=1e6)
    config.engine.name = "inbox"
    with caplog.at_level("INFO"):
        train(config, from_export=file, once=True, out=tmp_path / "adapter", url="http://127.0.0.1:9")
    assert f"of {later} later calls {exact} continue" in caplog.text
