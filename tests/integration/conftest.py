"""Real proxies in front of the real engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.running import Running, run_proxy


@pytest.fixture
def start_proxy(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """``start_proxy(engine.url, gate={...})`` → Running; ends with the test."""
    with contextlib.ExitStack() as stack:
        count = iter(range(100))
        yield lambda engine_url, **overrides: stack.enter_context(
            run_proxy(tmp_path / f"proxy{next(count)}", engine_url, **overrides)
        )


@pytest.fixture(scope="session")
def plain_proxy(engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One proxy for all comparisons of replies."""
    with run_proxy(tmp_path_factory.mktemp("plain"), engine.url, proxy={"durability": "process"}) as running:
        yield running


@pytest.fixture
def proxy(plain_proxy: Running) -> Running:
    return plain_proxy


@pytest.fixture(scope="module")
def client_proxy(engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A proxy that knows the model names of OpenAI's and Anthropic's clients."""
    models = {"gpt-4o*": {"trained": "inbox"}, "claude-*": {"trained": "inbox"}}
    with run_proxy(tmp_path_factory.mktemp("clients"), engine.url, models=models) as running:
        yield running
