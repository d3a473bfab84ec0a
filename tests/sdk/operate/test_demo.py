"""The demo's parts that need no engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.support import MODEL, free_port
from tests.support.server import Server

from slipstream.config import load_config
from slipstream.errors import ConfigError
from slipstream.operate.demo import (
    InboxDriver,
    Tally,
    _recorded,
    _tokens,
    demo_config,
    inbox_dir,
)
from slipstream.settings import Config, EngineConfig


def test_the_example_is_found() -> None:
    assert inbox_dir() == MODEL.parent
    assert (inbox_dir() / "model" / "config.json").is_file()


def test_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = demo_config(3, tmp_path)
    assert (config.data_dir, config.trainer.seed, config.model_name) == (str(tmp_path), 3, "inbox")
    assert config.proxy.port == 0
    assert config.engine.model == str(MODEL)
    plain = Config(data_dir=str(tmp_path), engine=EngineConfig(model=str(MODEL), name="inbox"))
    plain.proxy.port, plain.trainer.seed = 0, 3
    assert config == plain, "what it shows is what a user has by default"
    assert demo_config(3, tmp_path, ["trainer.learning_rate=1e-4"]).trainer.learning_rate == 1e-4
    with pytest.raises(ConfigError, match=r"did you mean trainer\.learning_rate"):
        demo_config(0, tmp_path, ["trainer.learning_rat=1"])
    same = load_config(env={}, base=config.model_dump())
    assert same == config


def test_the_agent_is_loaded_as_it_is(tmp_path: Path) -> None:
    """In a process of its own: the agent's modules have short names."""
    script = """
from slipstream.operate.demo import GROUP, HELD_OUT, load_agent
agent = load_agent()
assert load_agent().__file__ == agent.__file__
held_out = agent.make_tasks("eval", HELD_OUT, 0)
assert len(held_out) == HELD_OUT
tasks = agent.schedule("train", 0, GROUP, None)
first = [next(tasks) for _ in range(GROUP + 1)]
print(len({str(t[0] if isinstance(t, tuple) else t) for t in first}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_an_episode_that_fails_is_counted_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    driver = InboxDriver.__new__(InboxDriver)  # without the agent and its client
    driver.tally = Tally()
    driver._note(1.0)
    driver._note(ConnectionError("gone"))
    assert (driver.tally.episodes, driver.tally.failed) == (1, 1)
    assert "an episode failed: ConnectionError('gone')" in capsys.readouterr().err


async def test_tokens_by_the_engines_own_count(server: Server) -> None:
    server.on(
        "GET",
        "/metrics",
        'vllm:x 1\nvllm:generation_tokens_total{engine="0"} 1.5e2\nvllm:generation_tokens_total{engine="1"} 50\n',
    )
    async with httpx.AsyncClient(trust_env=False) as http:
        assert await _tokens(server.url, http) == 200
        assert await _tokens(f"http://127.0.0.1:{free_port()}", http) is None


async def test_calls_in_the_store_once_it_has_caught_up(server: Server) -> None:
    server.on("POST", "/sql", {"columns": ["n"], "rows": [[12]]})
    assert await _recorded(server.url, 12) == 12
