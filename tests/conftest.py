"""The engine: one real vLLM for the whole session, on the inbox example's model."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest
from tests.support import strict_slices, vllm
from tests.support.tree_plugins import see_this_tree

see_this_tree()
strict_slices.install()

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
# Each client of HTTP reads the certificates it may meet, and no test meets one: a machine's hundred and more take 30 ms.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "support" / "nobody.pem")
# How long an example takes says more of what else the machine does than of the code.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test of the real engine runs once more when it fails, and the report lists it (``-rR``). No other test does."""
    for item in items:
        if item.get_closest_marker("engine"):
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=2))


def pytest_collection_finish() -> None:
    """What all test modules have imported is a million objects and stays: no test that collects looks at them again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # so that Python ends as it does without


@dataclass(frozen=True)
class Engine:
    url: str
    """Without /v1."""
    model: str


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """SLIPSTREAM_TEST_ENGINE=URL uses one that runs already (quicker, while writing tests)."""
    if running := os.environ.get("SLIPSTREAM_TEST_ENGINE"):
        yield Engine(running.rstrip("/"), "inbox")
        return
    with vllm(tmp_path_factory.mktemp("engine") / "engine.log") as url:
        yield Engine(url, "inbox")
