"""The doctor at a real vLLM's bed: what it reads out of its answers is there."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from tests.support import MODEL

from slipstream.config import load_config
from slipstream.engines.vllm.examination import (
    COLD_TEMPERATURE,
    LIKELIEST_TOKENS_ASKED,
    MIN_LOGPROB_DISTANCE_NATS,
    _distance,
)
from slipstream.operate.doctor.engine import check_engine

pytestmark = pytest.mark.engine


def test_a_healthy_engine(engine, tmp_path: Path) -> None:
    flags = [f'engine.urls=["{engine.url}"]', "engine.name=inbox", f"engine.model={MODEL}", f"data_dir={tmp_path}/data"]
    found = list(check_engine(engine.url, load_config(env={}, flags=flags)))
    assert {f.level for f in found} == {"ok"}, found
    assert "(vLLM 0." in found[0].what
    assert found[2].what == "the engine takes adapters up to rank 16; trainer.lora_rank is 16"
    assert not (tmp_path / "data").exists()

    too_large = load_config(env={}, flags=[*flags, "trainer.lora_rank=32", "engine.max_lora_rank=32"])
    (bad,) = [f for f in check_engine(engine.url, too_large) if f.level != "ok"]
    assert (bad.level, "up to rank 16" in bad.what, "--max-lora-rank 32" in bad.fix) == ("fail", True, True)
    served = {m["id"] for m in httpx.get(f"{engine.url}/v1/models", trust_env=False).json()["data"]}
    assert not any("doctor" in name for name in served), "nothing is left in the engine"


def test_the_distance_of_two_tokens_follows_the_temperature(engine) -> None:
    asked = {
        "model": "inbox",
        "messages": [{"role": "user", "content": "hello"}],
        "logprobs": True,
        "top_logprobs": LIKELIEST_TOKENS_ASKED,
        "max_tokens": 1,
    }
    with httpx.Client(base_url=engine.url, timeout=60.0, trust_env=False) as http:
        found = [
            _distance(http, {**asked, "temperature": t, "seed": s}) for s in range(12) for t in (1.0, COLD_TEMPERATURE)
        ]
    warm, cold = found[0], found[1]
    assert warm and warm > MIN_LOGPROB_DISTANCE_NATS and cold == pytest.approx(4 * warm, abs=0.3)
    assert found == pytest.approx([warm, cold] * 12, abs=0.1), "it depends on what was sampled"
