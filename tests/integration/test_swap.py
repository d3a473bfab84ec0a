"""Swaps under 32 streams: no failed call, one adapter an episode, and the last adapter answers as on a fresh engine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from tests.support import vllm, wait_for
from tests.support.adapters import make_adapter
from tests.support.load import Load, streams

from slipstream.client import Client
from slipstream.contract import AdapterIn

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
SWAPS = 3


def likeliest(url: str, model: str, prompt: str) -> dict[str, float]:
    """The five likeliest next tokens after a prompt, with their log-probabilities."""
    asked = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 1.0, "logprobs": 5, "seed": 1}
    reply = httpx.post(f"{url}/v1/completions", json=asked, timeout=120, trust_env=False).raise_for_status().json()
    return dict(reply["choices"][0]["logprobs"]["top_logprobs"][0])


def best(top: dict[str, float]) -> tuple[str, float]:
    return max(top.items(), key=lambda item: item[1])


def test_swaps_under_32_streams(engine, start_proxy, tmp_path: Path) -> None:
    proxy = start_proxy(engine.url, adapters={"keep": 30})
    folder = proxy.data_dir / "adapters"
    folder.mkdir(parents=True, exist_ok=True)
    load = Load()

    async def swap_all() -> list[str]:
        stop = asyncio.Event()
        running = asyncio.create_task(streams(load, proxy.url, 32, stop))
        names = []
        with Client(proxy.url) as client:
            first = 500  # the engine is shared: no other test has these names
            for n in range(first, first + SWAPS):
                name = f"inbox@{n}"
                await asyncio.to_thread(make_adapter, folder / name, n)
                await asyncio.to_thread(client.add_adapter, AdapterIn(path=name, step=n))
                await asyncio.to_thread(
                    wait_for, lambda name=name: client.adapters().live["inbox"] == name, 120, 0.1, f"{name} is live"
                )
                names.append(name)
                await asyncio.sleep(1.0)
        stop.set()
        await running
        return names

    names = asyncio.run(swap_all())
    assert load.errors == []
    assert len(load.answered) > 10 * SWAPS
    assert {len(adapters) for adapters in load.adapters.values()} == {1}, "an episode was served by two adapters"
    served = set().union(*load.adapters.values())
    assert len(served & set(names)) >= SWAPS - 2, "swapped in, but hardly served"
    with Client(proxy.url) as client:
        wait_for(
            lambda: client.sql("select count(*) from calls where outcome = 'ok'").rows[0][0] >= len(load.answered),
            60,
            0.5,
            "all are stored",
        )
        assert client.sql("select count(*) from calls where outcome = 'ok'").rows[0][0] == len(load.answered)
    same_as_fresh(engine.url, names[-1], folder / names[-1], tmp_path)


def same_as_fresh(url: str, name: str, adapter: Path, tmp_path: Path) -> None:
    """The swapped-in adapter says what it says on an engine that knows no other."""
    prompts = [
        f"when is the {thing} for {person}"
        for thing in ("dentist", "flight", "visa")
        for person in ("dana", "omar", "vera")
    ]
    swapped = [best(likeliest(url, name, q)) for q in prompts]
    with vllm(tmp_path / "fresh.log", "--lora-modules", json.dumps({"name": name, "path": str(adapter)})) as alone:
        fresh = [best(likeliest(alone, name, q)) for q in prompts]
        unadapted = [best(likeliest(alone, "inbox", q)) for q in prompts]
    # bf16 on a CPU: batches of other shapes round otherwise
    same = [mine[1] == pytest.approx(theirs[1], abs=0.1) for mine, theirs in zip(swapped, fresh, strict=True)]
    assert all(same), f"{swapped} {fresh}"
    other = [mine[1] != pytest.approx(theirs[1], abs=0.1) for mine, theirs in zip(fresh, unadapted, strict=True)]
    assert any(other), f"the adapter changes nothing: {fresh} {unadapted}"
