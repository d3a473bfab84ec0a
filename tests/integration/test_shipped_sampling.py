"""A vLLM of one's own with a model's ``generation_config.json``: each call is recorded as it was sampled, or has the true reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support import vllm, wait_for
from tests.support.oracle import filtered_logprob
from tests.support.running import Running, recorded, run_proxy

from slipstream.engines.engine import NEUTRAL

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]
SHIPPED = {
    "Qwen2.5": {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
    "Qwen3": {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
    "Llama-3": {"temperature": 0.6, "top_p": 0.9},
    "Gemma-3": {"top_k": 64, "top_p": 0.95},
}
ASKED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a temperature": {"temperature": 0.9},
    "a top_p": {"top_p": 0.7},
    "everything": dict(NEUTRAL),
}
REASONS = {"the engine's own sampling", "penalties"}


def sampled_as_recorded(engine: str, call: Any, sampling: dict[str, Any]) -> float:
    """The largest difference of a recorded log-probability to the closed form, on the engine's whole distribution."""
    ids, said = call.prompt_ids, call.completion_ids[0]
    body = {"model": "inbox", "prompt": ids + said, "max_tokens": 1, "prompt_logprobs": -1, **NEUTRAL}
    reply = httpx.post(f"{engine}/v1/completions", json=body, timeout=120, trust_env=False).raise_for_status().json()
    rows = reply["choices"][0]["prompt_logprobs"][len(ids) :]
    apart = 0.0
    for token, row, logprob in zip(said, rows, call.logprobs[0], strict=True):
        logits = [-1e4] * (1 + max(map(int, row)))
        for name, value in row.items():
            logits[int(name)] = value["logprob"] / sampling["temperature"]
        expected = filtered_logprob(logits, token, sampling["min_p"], int(sampling["top_k"]), sampling["top_p"])
        apart = max(apart, abs(expected - logprob))
    return apart


def known(proxy: Running) -> str:
    body = {"model": "inbox", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    reply = httpx.post(f"{proxy.url}/v1/chat/completions", json=body, timeout=120, trust_env=False)
    return reply.headers["x-slipstream-trainable"].replace("unknown", "")


@pytest.mark.parametrize("plugin", [True, False], ids=["plugin", "bare"])
@pytest.mark.parametrize("name", SHIPPED)
def test_each_call_is_exact_or_says_why_not(tmp_path: Path, name: str, plugin: bool) -> None:
    own = SHIPPED[name]
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True, **own}))
    flags = ("--generation-config", str(tmp_path), "--max-logprobs", "-1")
    with vllm(tmp_path / "engine.log", *flags, plugin=plugin) as engine, run_proxy(tmp_path / "proxy", engine) as proxy:
        wait_for(lambda: known(proxy), 60, 1.0, "the proxy knows its engine's sampling")
        for n, (what, asked) in enumerate(ASKED.items()):
            body = {
                "messages": [{"role": "user", "content": "When is the meeting?"}],
                "max_tokens": 16,
                "seed": n,
                **asked,
            }
            headers = {"x-slipstream-episode": f"e{n}"}
            reply = httpx.post(
                f"{proxy.url}/v1/chat/completions",
                json={"model": "inbox", **body},
                headers=headers,
                timeout=120,
                trust_env=False,
            ).raise_for_status()
            (call,) = recorded(proxy.url, f"e{n}").call_list
            effective = {**NEUTRAL, **own, **asked}
            if call.trainable:
                apart = sampled_as_recorded(engine, call, effective)
                print(f"{name}, {what}: exact to {apart:.1e} nats")
                assert effective["repetition_penalty"] == 1.0
                assert apart < 1e-2
                assert reply.headers["x-slipstream-trainable"] == "yes"
            else:
                print(f"{name}, {what}: {call.untrainable_reason}")
                assert what != "everything"
                assert call.untrainable_reason in REASONS
                assert effective["repetition_penalty"] != 1.0 or (not plugin and "top_k" in own)
