"""Why vLLM or the trainer ended, in the words that they print, and what to do about it."""

from __future__ import annotations

import pytest

from slipstream.shared.processes.remedies import error_in, remedy

CORE = [
    "(EngineCore pid=9) ERROR 11-25 [core.py:900] Traceback (most recent call last):",
    '(EngineCore pid=9) ERROR 11-25 [core.py:900]   File "kv_cache_utils.py", line 9, in check',
    "(EngineCore pid=9) ERROR 11-25 [core.py:900] ValueError: No available memory for the cache blocks.",
    "(EngineCore pid=9) Process EngineCore:",
    "(APIServer pid=1) Traceback (most recent call last):",
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: leaked semaphore",
]
SEES = [
    "(APIServer pid=1) ERROR 11-25 [registry.py:1] Error in inspecting model architecture 'XForConditionalGeneration'",
    "(APIServer pid=1) ERROR 11-25 [registry.py:1] subprocess.CalledProcessError: Command '[]' returned exit status 1.",
    "(APIServer pid=1) ERROR 11-25 [registry.py:1] RuntimeError: Error raised in subprocess:",
    "(APIServer pid=1) ERROR 11-25 [registry.py:1] ModuleNotFoundError: No module named 'torchvision'",
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
    "  Value error, Model architectures ['XForConditionalGeneration'] failed to be inspected.",
]
"""vLLM looks at a model's class in a process of its own."""
TRAINER = ["loading", "Traceback (most recent call last):", "TypeError: unsupported operand type(s)", "bye"]


def test_the_cause_and_not_what_followed_from_it() -> None:
    assert error_in(CORE).endswith("ValueError: No available memory for the cache blocks.")
    assert error_in(SEES).endswith("ModuleNotFoundError: No module named 'torchvision'")
    assert error_in(SEES[-2:]) == SEES[-2]
    assert error_in(TRAINER) == "TypeError: unsupported operand type(s)"
    assert error_in(CORE[-2:]).startswith("(APIServer pid=1) RuntimeError: Engine core"), "nothing better is there"
    assert error_in(["no error", ""]) is None


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("TypeError: Error: --tool-call-parser x: could not locate the token", "engine.tool_parser=none"),
        ("KeyError: invalid tool call parser: x", "engine.tool_parser=none"),
        ("RuntimeError: XReasoningParser reasoning parser could not locate think tokens", "engine.reasoning_parser"),
        ("ValueError: max seq len (131072) is larger than the available KV cache memory", "engine.max_model_len"),
        ("ValueError: Free memory on device cuda:0 (2/80 GiB) is less than desired GPU memory utilization", "gpu_memory lower"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "smaller model"),
        ("OSError: You are trying to access a gated repo.", "hf auth login"),
        ("OSError: Qwen/Qwen9 is not a local folder and is not a valid model identifier", "model's name"),
        ("ValueError: Target modules {'x'} not found in the base model", "trainer.lora_targets"),
        ("OSError: [Errno 98] Address already in use", "engine.port"),
        ("ValueError: The checkpoint has model type `q` but Transformers does not recognize it", "upgrade"),
        ("ModuleNotFoundError: No module named 'torchvision'", "pytorch.org"),
        ("RuntimeError: operator torchvision::nms does not exist", "built for another torch"),
        ("OSError: libnvrtc.so.13: cannot open shared object file", "built for another torch"),
        ("ModuleNotFoundError: No module named 'timm'", "`slipstream doctor`"),
        ("ValueError: StablelmForCausalLM does not support LoRA yet.", "choose another model"),
        ("was ended by signal 9 (SIGKILL)", "if nobody killed it"),
        ("AssertionError", ""),
    ],
)  # fmt: skip
def test_what_to_do(words: str, fix: str) -> None:
    said = remedy(words)
    assert fix in said if fix else said == ""
