"""The tutorial's agent, against a real proxy in front of the fake engine."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.support import ROOT, process, slipstream, wait_for
from tests.support.fake_engine import FakeEngine

from slipstream.shared.processes.proxy_file import running_proxy

AGENT = ROOT / "examples" / "tutorial" / "agent.py"
SPEC = importlib.util.spec_from_file_location("tutorial_agent", AGENT)
assert SPEC is not None and SPEC.loader is not None
agent = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(agent)


@pytest.mark.parametrize(
    ("answer", "reward"),
    [("[1, 2, 3, 9]", 1.0), (" [1,2,3,9]\n", 1.0), ("[1, 3, 2, 9]", 0.5), ("[1]", 0.25), ("1, 2", 0.0), ('"x"', 0.0)],
)
def test_the_reward_is_the_share_of_right_places(answer: str, reward: float) -> None:
    assert agent.score(answer, [9, 3, 1, 2]) == reward


def test_runs_of_one_task_have_the_same_numbers() -> None:
    assert agent.numbers_of(3) == agent.numbers_of(3) != agent.numbers_of(4)
    assert len(set(agent.numbers_of(3))) == 8


async def test_its_runs_become_groups_with_rewards(tmp_path: Path) -> None:
    engine = await FakeEngine().start()
    data = tmp_path / "data"
    flags = [f"data_dir={data}", f'engine.urls=["{engine.url}"]', "engine.name=tiny", "proxy.port=0"]
    with process(slipstream("proxy", *(a for f in flags for a in ("--set", f))), tmp_path / "proxy.log"):
        url = await asyncio.to_thread(wait_for, lambda: running_proxy(data), 60, 0.1, "the proxy runs")
        ready = lambda: httpx.get(f"{url}/readyz", trust_env=False).is_success  # noqa: E731
        await asyncio.to_thread(wait_for, ready, 60, 0.1, "the proxy is ready")
        env = {**os.environ, "SLIPSTREAM_URL": str(url), "MODEL": "tiny"}

        def play() -> subprocess.CompletedProcess[str]:
            argv = [sys.executable, str(AGENT), "16"]
            return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)

        played = await asyncio.to_thread(play)
        assert played.returncode == 0, played.stderr
        assert "of the last 16 runs" in played.stdout

        def done() -> bool:
            found = httpx.get(f"{url}/slipstream/v1/status", trust_env=False).json()
            return bool(found["episodes"].get("done") == 16 and sum(found["groups"].values()) == 2)

        await asyncio.to_thread(wait_for, done, 60, 0.2, "two groups of eight runs")
    await engine.stop()
