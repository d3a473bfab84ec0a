"""The engine: one real vLLM for the whole session, on the inbox example's model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from tests.support import MODEL, process, wait_for

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")


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
    from slipstream.config import load_config
    from slipstream.engine import engine_command

    base = {
        "engine": {
            "model": str(MODEL),
            "name": "inbox",
            "max_model_len": 512,
            "tool_parser": "hermes",
            "args": ["--max-num-seqs", "64"],
        }
    }
    command = engine_command(load_config(None, env={}, base=base))
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    with process(command.argv, log, command.env) as p:

        def up() -> bool:
            if p.poll() is not None:
                pytest.exit(f"vLLM ended with {p.returncode}: {log.read_text()[-3000:]}", 1)
            return httpx.get(f"{command.url}/health", timeout=5, trust_env=False).is_success

        wait_for(up, 420, 0.5, "vLLM is up")
        yield Engine(command.url, "inbox")
