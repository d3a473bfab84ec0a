"""The trainer's log-probabilities against a real vLLM's, on the tokens that it sampled."""

from __future__ import annotations

import httpx
import numpy as np
import pytest
import torch
from tests.support import MODEL, vllm
from tests.support.tiny import make_config, make_trainer, sample

from slipstream_trainer.batch.layout import make_plan
from slipstream_trainer.versions.adapter_folder import write_adapter


@pytest.mark.engine
def test_engine_and_trainer_agree_on_sampled_tokens_and_on_temperature(engine, tmp_path) -> None:
    samples = []
    for i, temperature in enumerate((1.0, 0.7, 1.3)):
        body = {
            "model": engine.model, "prompt": [5, 9, 20 + i, 31, 8], "max_tokens": 24, "temperature": temperature, "n": 8, "logprobs": 1, "seed": i,
            "return_token_ids": True, "ignore_eos": True,
        }  # fmt: skip
        reply = (
            httpx.post(f"{engine.url}/v1/completions", json=body, timeout=180, trust_env=False)
            .raise_for_status()
            .json()
        )
        samples += [
            sample(
                f"e{i}", body["prompt"], choice["token_ids"], call=f"c{i}", choice=k, temperature=temperature,
                logprobs_C=np.array(choice["logprobs"]["token_logprobs"], dtype=np.float32),
            )
            for k, choice in enumerate(reply["choices"])
        ]  # fmt: skip

    def gap(dtype: str, **changes: float) -> float:
        """Mean absolute difference, nats."""
        trainer = make_trainer(make_config(MODEL, tmp_path / dtype, dtype=dtype, lora_rank=8), warm=False)
        for s in samples:
            s.temperature = changes.get("temperature", s.temperature)
        work = trainer.start(make_plan(samples, layout="tree"))
        with torch.no_grad():
            for micro in work.plan.micro:
                logps, _, token = trainer.forward(micro, work)
                work.policy_logprobs_T[token] = logps
        return float((work.policy_logprobs_T - work.behavior_logprobs_T).abs().mean())

    found = gap("float32")
    print(
        f"mean absolute gap to the engine (its dtype is the model's, bf16): {found:.4f}; in bf16: {gap('bfloat16'):.4f}"
    )
    assert found < 0.1
    assert gap("float32", temperature=1.0) > 2 * found, "each call has its own temperature"


@pytest.mark.learning
@pytest.mark.timeout(600)
def test_in_fp32_engine_and_trainer_agree_to_a_ten_thousandth(tmp_path) -> None:
    """The same adapter on both sides, at several temperatures, with prompts and replies of different lengths."""
    trainer = make_trainer(make_config(MODEL, tmp_path / "t", dtype="float32", lora_rank=8))
    write_adapter(trainer.learner.adapter, tmp_path / "inbox@5001", 16)
    samples = []
    with vllm(tmp_path / "engine.log", "--dtype", "float32") as url:
        load = {"lora_name": "inbox@5001", "lora_path": str(tmp_path / "inbox@5001")}
        httpx.post(f"{url}/v1/load_lora_adapter", json=load, timeout=180, trust_env=False).raise_for_status()
        for i, temperature in enumerate((1.0, 0.7, 1.3, 1.0)):
            body = {
                "model": "inbox@5001", "prompt": list(range(5, 25 + 40 * i)), "max_tokens": 40, "temperature": temperature, "n": 8, "logprobs": 1,
                "seed": i, "return_token_ids": True, "ignore_eos": True,
            }  # fmt: skip
            reply = (
                httpx.post(f"{url}/v1/completions", json=body, timeout=180, trust_env=False).raise_for_status().json()
            )
            samples += [
                sample(
                    f"e{i}", body["prompt"], choice["token_ids"], call=f"c{i}", choice=k, temperature=temperature,
                    logprobs_C=np.array(choice["logprobs"]["token_logprobs"], dtype=np.float32),
                )
                for k, choice in enumerate(reply["choices"])
            ]  # fmt: skip
    work = trainer.start(make_plan(samples, layout="tree"))
    with torch.no_grad():
        for micro in work.plan.micro:
            logps, _, token = trainer.forward(micro, work)
            work.policy_logprobs_T[token] = logps
    apart = (work.policy_logprobs_T - work.behavior_logprobs_T).abs()
    print(f"fp32, {len(apart)} tokens: mean {float(apart.mean()):.2e}, largest {float(apart.max()):.2e} nats")
    assert float(apart.max()) <= 1e-4
