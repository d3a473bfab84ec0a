"""What to do about an error that ended vLLM or the trainer: by its words."""

from __future__ import annotations

import re
from collections.abc import Iterable

AFTERMATH_PATTERN = re.compile(
    r"Engine core initialization failed|Engine core proc|EngineDead|Failed core proc|See root cause|see stack trace"
    r"|ChildFailedError|resource_tracker|Exception ignored|errors?\.pydantic|leaked"
    r"|validation error for ModelConfig|CalledProcessError|Error raised in subprocess",
    re.IGNORECASE,
)
"""Lines that say that something ended, and not why."""
ERROR_PATTERN = re.compile(r"\b(?:[A-Za-z_.]*(?:Error|Exception|Interrupt)\b(?::|$)|error:)", re.MULTILINE)
ERROR_REMEDIES = (
    (
        r"tool-call-parser|toolparser|tool-parser|tool parser|auto-tool-choice|tool call parser",
        'set engine.tool_parser to one that fits the model, or to "none" (--set engine.tool_parser=none)',
    ),
    (
        r"reasoning-?parser|reasoning parser",
        'set engine.reasoning_parser to one that fits the model, or to "none" (--set engine.reasoning_parser=none)',
    ),
    (
        r"KV cache|max seq len|max_model_len",
        "set engine.max_model_len lower, or engine.gpu_memory higher, or choose a smaller model",
    ),
    (
        r"Free memory on device|less than desired GPU memory",
        "another process has the GPU's memory: end it, or set engine.gpu_memory lower",
    ),
    (
        r"out of memory|OutOfMemory|Cannot allocate memory",
        'use a smaller model, set trainer.token_budget or engine.gpu_memory lower, or trainer.mode = "frugal"',
    ),
    (
        r"gated repo|401 Client Error|403 Client Error|Invalid credentials",
        "the hub wants a login that may read this model: `hf auth login`, or set HF_TOKEN",
    ),
    (
        (
            r"not a valid model identifier|Repository ?Not ?Found|does not appear to have a file|couldn't connect to"
            r"|LocalEntryNotFound|OfflineMode"
        ),
        "check the model's name and the connection to the hub, or give a folder",
    ),
    (r"trust_remote_code", 'the model brings its own code: set engine.args = ["--trust-remote-code"] if you trust it'),
    (
        r"No module named '?torchvision",
        "vLLM's class for this model imports torchvision: install the build for your torch (pytorch.org/get-started)",
    ),
    (
        r"operator torchvision::|Could not load this library|libtorch|libc10|libnvrtc|undefined symbol",
        "a package is built for another torch than the installed one: `slipstream doctor` names it, and what mends it",
    ),
    (
        r"does not support LoRA",
        "vLLM takes no adapters for this model's class: choose another model (Llama, Qwen3, Gemma 3, …)",
    ),
    (r"No module named '?([\w.]+)", "that package is missing: `slipstream doctor` names the line to install"),
    (
        "SIGKILL",
        "if nobody killed it, the kernel did, because memory ran out (`dmesg` says so): use a smaller model",
    ),
    (r"No space left on device", "free some disk"),
    (r"address already in use", "another process has the port: end it, or set engine.port"),
    (r"model type .* (?:but|not)|Unrecognized (?:model|configuration)|not supported for now|Model architectures", (
        "this version of transformers or vLLM does not know the model: upgrade it, or choose another model"
    )),
    (r"Target modules|target_modules|lora_targets", "set trainer.lora_targets to linear layers that the model has"),
    (r"no kernel image|CUDA driver|NVML|nvidia-smi", "GPU driver and torch are incompatible: see `slipstream doctor`"),
)  # fmt: skip
"""Part of the words → what to do. The first one counts."""


def error_in(lines: Iterable[str]) -> str | None:
    """The line that says why a process ended: its last error that is none of what followed from it."""
    said = [line.strip() for line in lines if line.strip()]
    errors = [line for line in said if ERROR_PATTERN.search(line)]
    causes = [line for line in errors if not AFTERMATH_PATTERN.search(line)]
    return (causes or errors)[-1] if errors else None


def remedy(words: str) -> str:
    """What to do about these words; empty: nothing is known."""
    return next((fix for pattern, fix in ERROR_REMEDIES if re.search(pattern, words, re.IGNORECASE)), "")
