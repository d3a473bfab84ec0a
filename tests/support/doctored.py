"""An engine that says what vLLM says, for the doctor's tests."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.server import Reply, Seen, Server

from slipstream.config import Config, load_config
from slipstream.engines.findings import Finding

MODELS = {"object": "list", "data": [{"id": "inbox"}]}
CHOICE = {
    "message": {"role": "assistant", "content": "x"}, "token_ids": [1, 2],
    "logprobs": {"content": [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -0.2}]},
}  # fmt: skip


def refuse(seen: Seen, max_rank: int = 16, *, blind: bool = False) -> Reply:
    """As vLLM refuses an adapter: it is not there, or its rank is too large."""
    asked = seen.json
    described = Path(asked["lora_path"]) / "adapter_config.json"
    if blind or not described.is_file():
        why = f"Loading lora {asked['lora_name']} failed: No adapter found for {asked['lora_path']}"
        return Reply({"error": {"message": why, "code": 404}}, 404)
    rank = json.loads(described.read_text())["r"]
    assert rank > max_rank
    why = f"LoRA rank {rank} is greater than max_lora_rank {max_rank}."
    return Reply({"error": {"message": why, "code": 400}}, 400)


def config(*flags: str) -> Config:
    return load_config(env={}, flags=["engine.name=inbox", *flags])


def engine(server: Server, *flags: str, **changed: object) -> Config:
    """Routes of a good engine, with some answers changed."""
    answers = {
        "version": Reply({"version": "0.32.0"}), "models": Reply(MODELS), "lora": refuse, "chat": Reply({"choices": [CHOICE]}),
    } | changed  # fmt: skip
    server.routes["GET", "/version"] = answers["version"]  # type: ignore[assignment]
    server.routes["GET", "/v1/models"] = answers["models"]  # type: ignore[assignment]
    server.routes["POST", "/v1/load_lora_adapter"] = answers["lora"]  # type: ignore[assignment]
    server.routes["POST", "/v1/chat/completions"] = answers["chat"]  # type: ignore[assignment]
    return config(f'engine.urls=["{server.url}"]', *flags)


def levels(findings: list[Finding]) -> list[str]:
    assert all(f.why and f.fix for f in findings if f.level != "ok"), findings
    return [f.level for f in findings]
