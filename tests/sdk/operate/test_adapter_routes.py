"""What vLLM 0.32 answers, and what is said of it."""

from __future__ import annotations

import json

import pytest

from slipstream.engines.engine import NoAdapters
from slipstream.engines.vllm.adapter_routes import cause_of, fix_of

ASKED = ("x@1", "/adapters/x@1")
NOT_FOUND = json.dumps({"detail": "Not Found"})
LORA_OFF = "Call to add_lora method failed: Worker failed with error 'LoRA is not enabled. Use --enable-lora to enable LoRA.', please check"
BAD = "Loading lora x@1 failed: No adapter found for /adapters/x@1"


def error(message: str) -> str:
    return json.dumps({"error": {"message": message, "type": "NotFoundError", "param": None, "code": 404}})


@pytest.mark.parametrize(
    ("status", "text", "cause"),
    [
        (200, "Success: LoRA adapter 'x@1' added successfully.", None),
        (404, NOT_FOUND, NoAdapters.NO_ROUTES),
        (404, error("Not Found"), NoAdapters.NO_ROUTES),  # other servers
        (405, json.dumps({"detail": "Method Not Allowed"}), NoAdapters.NO_ROUTES),
        (404, "<html>404</html>", NoAdapters.NO_ROUTES),
        (404, "", NoAdapters.NO_ROUTES),
        (500, error(LORA_OFF), NoAdapters.NO_LORA),
        (401, json.dumps({"error": "Unauthorized"}), NoAdapters.NO_RIGHT),
        (403, "", NoAdapters.NO_RIGHT),
        (404, error(BAD), None),
        (404, json.dumps({"detail": f"Not Found: {ASKED[1]}"}), None),
        (400, error("LoRA rank 64 is greater than max_lora_rank 16."), None),
        (400, error("2 validation errors: lora_name"), None),
        (500, error("CUDA out of memory"), None),
        (503, "", None),
        (400, error("unknown argument --enable-lora-bias"), None),
        (404, error("no"), None),
    ],
)
def test_what_an_answer_says_of_the_engine(status: int, text: str, cause: NoAdapters | None) -> None:
    assert cause_of(status, text, ASKED) is cause


def test_a_path_may_say_anything() -> None:
    path = "/runs/enable-lora/x@1"
    assert cause_of(404, error(f"Loading lora x@1 failed: No adapter found for {path}"), ("x@1", path)) is None


@pytest.mark.parametrize(
    ("cause", "plugin", "version", "said"),
    [
        (NoAdapters.NO_ROUTES, False, "0.32.0", ["VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "--enable-lora", "or with the engine plugin"]),
        (NoAdapters.NO_ROUTES, False, "", ["VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "or with the engine plugin"]),
        (NoAdapters.NO_ROUTES, False, "0.33.1+cpu", ["knows vLLM 0.25 to 0.32 and is off with 0.33.1+cpu", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"]),
        (NoAdapters.NO_ROUTES, True, "0.32.0", ["VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "SLIPSTREAM_ENGINE_ADAPTERS=1", "--enable-lora"]),
        (NoAdapters.NO_LORA, True, "0.32.0", ["--enable-lora"]),
        (NoAdapters.NO_RIGHT, False, "0.32.0", ["engine.api_key"]),
    ],
)  # fmt: skip
def test_the_fix(cause: NoAdapters, plugin: bool, version: str, said: list[str]) -> None:
    fix = fix_of(cause, plugin=plugin, version=version)
    assert not [s for s in said if s not in fix], fix
    assert cause.what
