"""What the tests of the judge share: a ruled judge, a pretended proxy, and no keys of the machine."""

from __future__ import annotations

import contextlib

import pytest
from tests.support.control import FakeControl
from tests.support.ruled_judge import RuledJudge
from tests.support.served import Served


@pytest.fixture(scope="session", autouse=True)
def _warm():
    """LiteLLM's import takes seconds, on a busy machine many, and so does its first call: no test's time-outs are about that."""
    from slipstream_judge.model.llm import litellm

    module = litellm()
    with Served(RuledJudge().app()) as url:
        for model in ("openai/gpt-4o-mini", "openai/ruled"):
            with contextlib.suppress(Exception):
                module.completion(model=model, messages=[], api_base=url, api_key="none", max_retries=0, num_retries=0)


@pytest.fixture
def ruled():
    """A ruled judge that is served; its ``url`` ends in /v1."""
    judge = RuledJudge()
    with Served(judge.app()) as url:
        judge.url = f"{url}/v1"
        yield judge


@pytest.fixture
def control():
    fake = FakeControl()
    with Served(fake.app()) as url:
        fake.url = url
        yield fake


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch):
    for name in (
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "OPENAI_API_BASE",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "http_proxy",
        "https_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
