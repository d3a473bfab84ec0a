"""Which vLLM the plugin knows. It changes functions inside vLLM, so each of them is looked at before it is replaced."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

OLDEST_MINOR, NEWEST_MINOR = (0, 25), (0, 32)
"""vLLM minor versions that the tests have run on, and those between them."""

CHAT_MODULE = "vllm.entrypoints.openai.chat_completion"
COMPLETION_MODULE = "vllm.entrypoints.openai.completion"
API_FUNCTIONS: dict[str, tuple[str, ...]] = {
    f"{CHAT_MODULE}.protocol:ChatCompletionRequest.to_sampling_params": (
        "self",
        "max_tokens",
        "default_sampling_params",
    ),
    f"{COMPLETION_MODULE}.protocol:CompletionRequest.to_sampling_params": (
        "self",
        "max_tokens",
        "default_sampling_params",
    ),
    f"{CHAT_MODULE}.serving:OpenAIServingChat.chat_completion_stream_generator": (
        "self",
        "request",
        "result_generator",
    ),
    f"{CHAT_MODULE}.serving:OpenAIServingChat.chat_completion_full_generator": ("self", "request", "result_generator"),
    f"{COMPLETION_MODULE}.serving:OpenAIServingCompletion.completion_stream_generator": (
        "self",
        "request",
        "engine_inputs",
        "result_generator",
    ),
    f"{COMPLETION_MODULE}.serving:OpenAIServingCompletion.request_output_to_completion_response": (
        "self",
        "final_res_batch",
        "request",
    ),
    "vllm.v1.engine.logprobs:LogprobsProcessor.from_new_request": ("tokenizer", "request"),
    "vllm.v1.engine.output_processor:OutputProcessor.process_outputs": ("self", "engine_core_outputs"),
    "vllm.v1.engine.logprobs:LogprobsProcessor._update_sample_logprobs": ("self", "logprobs_lists"),
    "vllm.entrypoints.openai.models.serving:OpenAIServingModels.__init__": (
        "self",
        "engine_client",
        "base_model_paths",
    ),
    "vllm.entrypoints.serve.lora.api_router:attach_router": ("app",),
    "vllm.entrypoints.serve.lora.api_router:envs.__getattr__": ("name",),
}
"""What the plugin replaces or calls in an API server → the first parameters that it must have."""

CORE_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "vllm.v1.core.sched.scheduler:Scheduler.update_from_output": ("self", "scheduler_output", "model_runner_output"),
}
"""The same for the engine core's process."""

PREFETCH_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "vllm.v1.engine.async_llm:AsyncLLM.add_lora": ("self", "lora_request"),
    "vllm.v1.engine.core_client:AsyncMPClient.call_utility_async": ("self", "method", "args"),
    "vllm.v1.engine.core:EngineCore.add_lora": ("self", "lora_request"),
    "vllm.lora.worker_manager:WorkerLoRAManager._load_adapter": ("self", "lora_request"),
    "vllm.lora.worker_manager:WorkerLoRAManager.list_adapters": ("self",),
    "vllm.lora.model_manager:LoRAModelManager._create_merged_loras_inplace": ("self", "lora_model"),
}
"""The same for adapters that are read ahead, in both processes."""

SLOTS_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "vllm.v1.core.sched.scheduler:Scheduler.schedule": ("self",),
    "vllm.v1.core.sched.request_queue:RequestQueue.remove_requests": ("self", "requests"),
    "vllm.v1.engine.core:EngineCore.collective_rpc": ("self", "method"),
}
"""The same for the adapters' turns at the slots, in the engine core's process."""

EXPECTED_FUNCTIONS = {
    "api": API_FUNCTIONS,
    "core": CORE_FUNCTIONS,
    "prefetch": PREFETCH_FUNCTIONS,
    "slots": SLOTS_FUNCTIONS,
}
"""By part of the plugin."""


def resolve(path: str) -> Any:
    """``module`` or ``module:Class.attribute``. Raises ``ImportError`` or ``AttributeError``."""
    module, _, names = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split(".") if names else ():
        found = getattr(found, name)
    return found


def minor(version: str) -> tuple[int, int] | None:
    """``0.25.1+cpu`` → (0, 25)."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def unsupported(part: str = "api") -> str | None:
    """Why a part of the plugin must stay off; None: it may work."""
    import vllm

    version = minor(vllm.__version__)
    if version is None or not OLDEST_MINOR <= version <= NEWEST_MINOR:
        known = f"{OLDEST_MINOR[0]}.{OLDEST_MINOR[1]} to {NEWEST_MINOR[0]}.{NEWEST_MINOR[1]}"
        return f"vLLM {vllm.__version__} is not one of the versions it knows ({known})"
    for path, expected in EXPECTED_FUNCTIONS[part].items():
        try:
            parameters = tuple(inspect.signature(resolve(path)).parameters)
        except (ImportError, AttributeError, TypeError, ValueError) as e:
            return f"vLLM {vllm.__version__} has no {path} ({e})"
        if parameters[: len(expected)] != expected:
            return f"vLLM {vllm.__version__}: {path} takes {parameters}"
    return None
