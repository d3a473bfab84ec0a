"""The vLLM that ``slipstream up`` starts: its command, its environment, and what must be true of it.

Why each flag: exact capture needs ``--generation-config vllm`` (a model's own would silently set top_k and top_p) and
``--logprobs-mode processed_logprobs`` (log-probabilities as sampled, after temperature); ``/v1/responses`` says how
much of a prompt was cached, which
only ``--enable-prompt-tokens-details`` tells; hot swaps need ``--enable-lora`` and runtime updating.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from slipstream.config import Config
from slipstream.errors import StartError
from slipstream.operate.parsers import choose_parsers


@dataclass(slots=True)
class EngineCommand:
    argv: list[str]
    env: dict[str, str]
    url: str
    says: list[str]
    """What was chosen, for the person who started it."""


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as s:
        s.bind((host, 0))
        return int(s.getsockname()[1])


def has_gpu() -> bool:
    """True where NVIDIA's driver is; importing torch to ask would take seconds."""
    return Path("/dev/nvidiactl").exists() and os.environ.get("CUDA_VISIBLE_DEVICES") != ""


def model_config(model: str, setting: str = "--model") -> dict[str, object]:
    """The model's ``config.json`` where it is a folder. Raises ``StartError`` when no such model can exist."""
    path = Path(model).expanduser()
    if path.is_dir():
        file = path / "config.json"
        if not file.is_file():
            raise StartError(f"{setting} {model}: the folder has no config.json, so it is no model")
        try:
            config = json.loads(file.read_text())
        except (OSError, ValueError) as e:
            raise StartError(f"{setting} {model}: its config.json can't be read: {e}") from e
        return config if isinstance(config, dict) else {}
    looks_local = model.startswith((".", "/", "~")) or model.count("/") != 1
    if looks_local or os.environ.get("HF_HUB_OFFLINE") == "1":
        why = "" if looks_local else " (HF_HUB_OFFLINE=1, so no hub is asked)"
        raise StartError(f"{setting} {model}: no such folder{why}; give a folder or a hub name like Qwen/Qwen3-4B")
    return {}


def _cpu_env() -> dict[str, str]:
    env = {"VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")}
    omp = Path(sys.prefix) / "lib" / "libiomp5.so"
    if omp.is_file() and "LD_PRELOAD" not in os.environ:
        env["LD_PRELOAD"] = str(omp)
    return env


ONE_SERVER = ("-m", "vllm.entrypoints.openai.api_server", "--model")
SEVERAL_SERVERS = ("-m", "slipstream_vllm.serve")
"""``vllm serve``; the module above ignores ``--api-server-count``."""
MOST_API_SERVERS = 4
CORES_AN_API_SERVER = 4


def api_servers(config: Config, *, gpu: bool) -> int:
    """How many processes read requests and write replies.

    One of them is the bottleneck of a fast GPU; on a CPU it would take a core from the engine.
    """
    if config.engine.api_servers is not None:
        return config.engine.api_servers
    if not gpu or config.engine.share:  # turns on one GPU have been tried with one API server only
        return 1
    return max(1, min(MOST_API_SERVERS, (os.cpu_count() or 1) // CORES_AN_API_SERVER))


def _base_argv(config: Config, model: str, *, port: int, servers: int) -> list[str]:
    """The arguments that every engine gets."""
    engine = config.engine
    options = {
        "--served-model-name": config.model_name,
        "--host": engine.host,
        "--port": port,
        "--dtype": engine.dtype,
        "--max-loras": engine.max_loras,
        "--max-lora-rank": engine.max_lora_rank,
        "--max-cpu-loras": 4 * engine.max_loras,
        "--generation-config": "vllm",
        "--logprobs-mode": "processed_logprobs",
    }
    start = ONE_SERVER if servers == 1 else SEVERAL_SERVERS
    argv = [sys.executable, *start, model, "--enable-lora", "--enable-prompt-tokens-details"]
    for name, value in options.items():
        argv += [name, str(value)]
    return argv


def engine_command(config: Config, *, gpu: bool | None = None) -> EngineCommand:
    """How vLLM is started for this configuration. Raises ``StartError`` for a model that cannot be."""
    engine = config.engine
    if engine.model is None:
        raise StartError("no model: give --model PATH_OR_NAME, or --engine URL of a vLLM that already runs")
    described = model_config(engine.model)
    folder = Path(engine.model).expanduser()
    model = str(folder) if folder.is_dir() else engine.model
    gpu = has_gpu() if gpu is None else gpu
    port = engine.port or free_port(engine.host)
    parsers = choose_parsers(config, described)
    servers = api_servers(config, gpu=gpu)
    argv = _base_argv(config, model, port=port, servers=servers)
    if engine.max_model_len:
        argv += ["--max-model-len", str(engine.max_model_len)]
    if parsers.tool:
        argv += ["--enable-auto-tool-choice", "--tool-call-parser", parsers.tool]
    if parsers.reasoning:
        argv += ["--reasoning-parser", parsers.reasoning]
    env = {"VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}
    if servers == 1:
        env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    else:  # vLLM refuses that variable then; Slipstream's plugin shares the adapters between the API servers
        argv += ["--api-server-count", str(servers)]
        env["SLIPSTREAM_ENGINE_ADAPTERS"] = "1"
    says = parsers.says
    if servers > 1:
        says.append(f"API servers: {servers}")
    if gpu:
        memory = engine.gpu_memory or (0.45 if config.trainer.enabled and not engine.share else 0.9)
        argv += ["--gpu-memory-utilization", str(memory)]
        says.append(f"GPU memory for vLLM: {memory:.0%}" + ("" if memory > 0.5 else ", the rest for the trainer"))
        if engine.share:
            argv.append("--enable-sleep-mode")
            says.append("one GPU for both: vLLM sleeps while the trainer steps")
    else:
        argv += ["--enforce-eager", "--block-size", "32"]
        env |= _cpu_env()
        says.append("no GPU: vLLM on the CPU")
    if engine.share:
        env["VLLM_SERVER_DEV_MODE"] = "1"  # the sleep routes; the proxy lets nobody through to them
    if folder.is_dir():
        env["HF_HUB_OFFLINE"] = "1"
    if engine.api_key:
        env["VLLM_API_KEY"] = engine.api_key
    return EngineCommand(argv + engine.args, env, f"http://{engine.host}:{port}", says)
