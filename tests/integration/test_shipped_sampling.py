"""A vLLM of one's own with a model's ``generation_config.json``: each call is recorded as it was sampled, or has the true reason."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support import MODEL, vllm, wait_for
from tests.support.oracle import filtered_logprob
from tests.support.running import Running, recorded, run_proxy

from slipstream.config import load_config
from slipstream.engines.engine import NEUTRAL_SAMPLING
from slipstream.engines.vllm.engine import Vllm
from slipstream.engines.vllm.examination import examine

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]
SHIPPED = {
    "Qwen2.5": {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
    "Qwen3": {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
    "Llama-3": {"temperature": 0.6, "top_p": 0.9},
    "Gemma-3": {"top_k": 64, "top_p": 0.95},
    "SmolLM2": {},
}
ASKED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a temperature": {"temperature": 0.9},
    "a top_p": {"top_p": 0.7},
    "everything": dict(NEUTRAL_SAMPLING),
}
SAYS = "When is the meeting?"
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": SAYS}], "max_tokens": 16}),
    "text": ("/v1/completions", {"prompt": SAYS, "max_tokens": 16}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": SAYS}], "max_tokens": 16}),
    "responses": ("/v1/responses", {"input": SAYS, "max_output_tokens": 16}),
}
LACKS = {"messages": {"min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"}}
"""Fields that vLLM does not read in this format."""
WAYS = {
    "plugin": ("plugin", *SHIPPED),
    "bare": ("its file is elsewhere", *SHIPPED),
    "file": ("the proxy can read its file", "Qwen2.5", "Qwen3"),
    "raw": ("log-probabilities before temperature", "Qwen3", "Gemma-3"),
}
"""How that vLLM was started → what is special of it, and the models to try so."""
CASES = [(way, name) for way, (_, *names) in WAYS.items() for name in names]


def sampled_as_recorded(engine: str, call: Any, sampling: dict[str, Any]) -> float:
    """The largest difference of a recorded log-probability to the closed form, on the engine's whole distribution."""
    ids, said = call.prompt_ids, call.completion_ids[0]
    body = {"model": "inbox", "prompt": ids + said, "max_tokens": 1, "prompt_logprobs": -1, **NEUTRAL_SAMPLING}
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


def started(folder: Path, way: str, own: dict[str, float], stack: contextlib.ExitStack) -> str:
    """A vLLM as its owner starts it: the flags of `slipstream up` for sampling are taken back. → Its URL."""
    file = json.dumps({"do_sample": True, **own})
    model, where = MODEL, folder / "config"
    if way in ("file", "raw"):
        model, where = Path(shutil.copytree(MODEL, folder / "model")), folder / "model"
    where.mkdir(exist_ok=True)
    (where / "generation_config.json").write_text(file)
    flags = ["--generation-config", "auto" if model is not MODEL else str(where), "--max-logprobs", "-1"]
    if way == "raw":
        flags += ["--logprobs-mode", "raw_logprobs"]
    return stack.enter_context(vllm(folder / "engine.log", *flags, model=model, plugin=way == "plugin"))


def ask(proxy: Running, form: str, asked: dict[str, Any], episode: str, *, stream: bool) -> str:
    """→ What the reply says of training."""
    path, said = FORMS[form]
    body = {"model": "inbox", **said, **asked, **({"stream": True} if stream else {})}
    tags = {"x-slipstream-episode": episode}
    reply = httpx.post(f"{proxy.url}{path}", json=body, headers=tags, timeout=120, trust_env=False).raise_for_status()
    return reply.headers["x-slipstream-trainable"]


def examined(engine: str, root: Path) -> str:
    """What `slipstream doctor` warns of."""
    config = load_config(None, env={}, base={"engine": {"urls": [engine], "name": "inbox"}})
    with httpx.Client(base_url=engine, timeout=120, trust_env=False) as http:
        found = [*examine(Vllm(), http, config, str(root))]
    return " ".join(f.what for f in found if f.level != "ok")


@pytest.mark.parametrize(("way", "name"), CASES)
def test_each_call_is_exact_or_says_why_not(tmp_path: Path, way: str, name: str) -> None:
    own = SHIPPED[name]
    with contextlib.ExitStack() as stack:
        engine = started(tmp_path, way, own, stack)
        proxy = stack.enter_context(run_proxy(tmp_path / "proxy", engine))
        first = ask(proxy, "chat", {}, "first", stream=False)  # the proxy may not know yet what its engine samples with
        wait_for(
            lambda: "unknown" not in ask(proxy, "chat", NEUTRAL_SAMPLING, "wait", stream=False), 60, 1.0, "it knows"
        )
        wrong = judged(engine, recorded(proxy.url, "first").call_list[0], own, {}, first, way)
        count = 0
        for (what, asked), form, stream in itertools.product(ASKED.items(), FORMS, (False, True)):
            count += 1
            said = ask(proxy, form, asked, f"e{count}", stream=stream)
            asked = {n: v for n, v in asked.items() if n not in LACKS.get(form, ())}
            (call,) = recorded(proxy.url, f"e{count}").call_list
            if why := judged(engine, call, own, asked, said, way):
                wrong += f"{form}, {what}, stream {stream}: {why}\n"
        assert not wrong
        told = examined(engine, tmp_path / "model")
        assert ("generation_config.json" in told) is (
            "repetition_penalty" in own or (way == "bare" and "top_k" in own)
        ), told
        assert ("before temperature" in told) is (way == "raw"), told


def judged(engine: str, call: Any, own: dict[str, float], asked: dict[str, Any], said: str, way: str) -> str:
    """What of its record is not so; empty: nothing."""
    effective = {**NEUTRAL_SAMPLING, **own, **asked}
    plain = all(effective[n] == NEUTRAL_SAMPLING[n] for n in ("temperature", "top_p", "top_k", "min_p"))
    reasons = {"penalties"} if effective["repetition_penalty"] != 1.0 else set()
    if way == "raw" and not plain:
        reasons.add("log-probabilities before temperature")
    if len(asked) < len(NEUTRAL_SAMPLING) and (way == "bare" or call.episode == "first"):
        reasons.add("the engine's own sampling")
    if not call.trainable:
        return (
            ""
            if call.untrainable_reason in reasons and call.untrainable_reason in said
            else f"{call.untrainable_reason}; {said}"
        )
    if said != "yes" and call.episode != "first":
        return f"the reply said {said}"
    if reasons - {"the engine's own sampling"}:
        return f"it is trained on in spite of {reasons}"
    apart = sampled_as_recorded(engine, call, effective)
    return "" if apart < 1e-2 else f"it is {apart:.1e} nats off"
