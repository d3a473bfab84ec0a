from __future__ import annotations

import pytest
from tests.judge.fake_control import FakeControl
from tests.judge.ruled_judge import RuledJudge, Served


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
