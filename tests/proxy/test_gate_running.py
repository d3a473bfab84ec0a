"""The gate as an agent's users meet it: a real proxy process at its default settings, an engine that speaks vLLM's
protocol, rewards by HTTP, and a new version every 64 episodes. Many runs of each are the benchmark's (``benchmarks/gate``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import tomli_w
from tests.support import process, slipstream
from tests.support.adapters import write_adapter
from tests.support.fake_engine import LoraEngine
from tests.support.plane import until

API = "/slipstream/v1"
EVERY = 64
"""Episodes between two versions."""
AGENTS = 16
"""Episodes at once."""


class Traffic:
    """Agents that call, and post the reward that the adapter earned. ``quality(adapter)`` is its chance of success."""

    def __init__(self, url: str, adapters: Path, session: aiohttp.ClientSession, seed: int) -> None:
        self.url, self.adapters, self.session = url, adapters, session
        self.coin = random.Random(seed)
        self.quality: Callable[[str], float] = lambda _: 1.0
        self.made = 0
        self.played = self.bad = 0
        """Episodes; those of them that a trained version answered."""
        self.over = False

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[Any, dict[str, str]]:
        async with self.session.request(method, self.url + path, json=body, headers=headers) as r:
            got = await r.json()
            assert r.status < 300, (path, r.status, got)
            return got, dict(r.headers)

    async def episode(self) -> None:
        n = self.played = self.played + 1
        said = {"model": "tiny", "messages": [{"role": "user", "content": f"do {n % 50}"}], "temperature": 1.0}
        tags = {"x-slipstream-episode": f"e{n}", "x-slipstream-task": f"t{(n // 8) % 50}"}
        _, head = await self.ask("POST", "/v1/chat/completions", said, **tags)
        adapter = head["x-slipstream-adapter"]
        self.bad += "@" in adapter
        reward = float(self.coin.random() < self.quality(adapter))
        await self.ask("POST", f"{API}/episodes/e{n}/rewards", {"value": reward, "done": True})

    async def play(self, episodes: int) -> None:
        """So many, fewer if something was taken back."""
        left = iter(range(episodes))

        async def agent() -> None:
            for _ in left:
                if self.over:
                    return
                await self.episode()

        await asyncio.gather(*(agent() for _ in range(AGENTS)))

    async def publish(self) -> None:
        self.made += 1
        write_adapter(self.adapters / f"tiny@{self.made}", fill=self.made % 250)
        await self.ask("POST", API + "/adapters", {"path": f"tiny@{self.made}"})

    async def states(self) -> dict[str, str]:
        got, _ = await self.ask("GET", API + "/adapters")
        return {a["name"]: a["state"] for a in got["adapters"]}

    async def rollback(self) -> dict[str, Any]:
        """What its event says. The event is stored a moment after the states have changed."""

        async def told() -> dict[str, Any] | None:
            async with self.session.get(f"{self.url}{API}/training/events") as r:
                events = [json.loads(line) for line in (await r.text()).splitlines()]
            return next((e["data"] for e in events if e["kind"] == "rollback"), None)

        return await until(told, 30)

    async def watch(self) -> None:
        while "rolled_back" not in (await self.states()).values():
            await asyncio.sleep(0.05)
        self.over = True

    async def until_taken_back(self, most: int) -> int:
        """A new version every ``EVERY`` episodes. → Episodes that a version answered until one was taken back."""
        watching = asyncio.create_task(self.watch())
        try:
            while self.played < most and not self.over:
                await self.publish()
                await self.play(EVERY)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(watching, 10)
        finally:
            watching.cancel()
        assert self.over, f"none of {self.made} versions was taken back"
        return self.bad


@pytest.fixture
async def traffic(tmp_path: Path) -> AsyncIterator[Callable[[int], Traffic]]:
    engine = await LoraEngine().start()
    data = tmp_path / "data"
    config = tmp_path / "slipstream.toml"
    tree = {"data_dir": str(data), "proxy": {"port": 0}, "engine": {"urls": [engine.url], "name": "tiny"}}
    config.write_text(tomli_w.dumps(tree))
    log = tmp_path / "proxy.log"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        with process(slipstream("proxy", "--config", str(config)), log) as p:

            async def ready() -> str:
                assert p.poll() is None, log.read_text()[-3000:]
                with contextlib.suppress(OSError, ValueError, aiohttp.ClientError):
                    told = json.loads((data / "proxy.json").read_text())
                    async with session.get(told["url"] + "/readyz") as r:
                        return told["url"] if r.status == 200 else ""
                return ""

            url = await until(ready, 90)
            yield lambda seed: Traffic(url, data / "adapters", session, seed)
    await engine.stop()


@pytest.mark.parametrize(
    ("base", "worse", "within", "seed"),
    [
        (1.0, 0.0, 40, 0),
        pytest.param(0.7, 0.4, 400, 1, marks=pytest.mark.slow),
        pytest.param(0.7, 0.6, 3000, 2, marks=pytest.mark.slow),
    ],
)
async def test_worse_versions_are_taken_back_in_time(traffic, base, worse, within, seed):
    agents = traffic(seed)
    agents.quality = lambda adapter: worse if "@" in adapter else base
    await agents.play(EVERY)
    live = await agents.until_taken_back(2 * within + EVERY)
    assert live <= within + AGENTS  # each agent may have begun one more run while the verdict went round
    event = await agents.rollback()
    assert event["to"] == "tiny" and event["gate"]["evidence"] >= event["gate"]["threshold"]
    states = await agents.states()
    last = int(event["adapter"].split("@")[1])
    assert {states[f"tiny@{v}"] for v in range(1, last + 1)} <= {"rolled_back", "retired"}
