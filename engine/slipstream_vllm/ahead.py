"""Triton compiles a start's kernels before the engine asks for them, on a GPU.

With an empty cache, vLLM's engine compiles them one after the other, 13 s on an H200's host. Once vLLM knows its
configuration, forks of it compile the same kernels at once: they call vLLM's own functions with tensors that have
shapes and no memory. The engine finds the kernels in Triton's cache, and compiles what is not there. The forks use no
GPU, and what fails in them changes nothing.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.util
import inspect
import logging
import os
import signal
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from slipstream_vllm.versions import resolve

if TYPE_CHECKING:
    from vllm.config import VllmConfig

log = logging.getLogger("vllm.slipstream")
FORK_TIMEOUT_S = 60
"""Seconds after which each fork ends."""
FAILED_EXIT_CODE = 255
KERNEL_TOKEN_COUNTS = (256, 64, 1)
"""vLLM's adapter kernels differ from 128 tokens on. A small rank's differ for one token."""
Recipe = Callable[[], object]
_begun: list[int] = []


def cores() -> int:
    """That this process may use."""
    count = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, int(quota) // int(period))
    return count


def capability() -> int | None:
    """The GPU's, such as 90, asked without CUDA. None: there is none, or this process has used it."""
    import torch
    from vllm.platforms import current_platform

    if not current_platform.is_cuda() or torch.cuda.is_initialized():
        return None
    asked = isinstance(current_platform, resolve("vllm.platforms.cuda:NvmlCudaPlatform"))
    found = current_platform.get_device_capability() if asked else None
    return found and found.to_int()


def _end(work: Callable[[], int], patience: float) -> None:
    """In a fork: work in silence, without the parent's sockets and pipes, and end. What is returned is the status."""
    status = FAILED_EXIT_CODE
    try:
        gc.disable()  # a collection would copy the parent's memory
        signal.set_wakeup_fd(-1)  # an event loop's handlers would write to files that are closed here
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(max(1, round(patience)))
        for fd in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), fd)
        for fd in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            with contextlib.suppress(OSError):
                if stat.S_IFMT(os.fstat(fd).st_mode) in (stat.S_IFSOCK, stat.S_IFIFO):
                    os.close(fd)
        status = work()
    finally:
        os._exit(status)


def start(work: Callable[[], int]) -> threading.Thread:
    """In a fork, and a thread that waits for its end. ``work`` gives the number of kernels."""
    began, child = time.monotonic(), os.fork()
    if not child:
        _end(work, FORK_TIMEOUT_S)

    def wait() -> None:
        with contextlib.suppress(ChildProcessError):
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            count, took = status if 0 <= status < FAILED_EXIT_CODE else "not all", time.monotonic() - began
            log.debug("slipstream plugin compiled %s kernels ahead in %.1f s", count, took)

    thread = threading.Thread(target=wait, name="kernels-ahead", daemon=True)
    thread.start()
    return thread


def compile_all(works: list[Callable[[], int]], at_once: int) -> int:
    """Each in a fork of its own. Returns how many succeeded."""
    end, running, done = time.monotonic() + FORK_TIMEOUT_S, 0, 0
    while works or running:
        if works and running < at_once:
            work = works.pop(0)
            if not os.fork():
                _end(work, end - time.monotonic())
            running += 1
        else:
            running -= 1
            done += os.wait()[1] == 0
    return done


def planned(recipes: list[Recipe], target: int) -> list[Callable[[], int]]:
    """The different kernels that the recipes launch, each as what compiles it."""
    hooks, function = resolve("triton.knobs:runtime"), resolve("triton.runtime.jit:JITFunction")
    gpu = resolve("triton.backends.compiler:GPUTarget")("cuda", target, 32)
    device = {"get_current_device": lambda: 0, "get_current_stream": lambda _: 0}
    resolve("triton.runtime:driver").set_active(SimpleNamespace(get_current_target=lambda: gpu, **device))
    resolve("triton.runtime.cache:triton_key")()  # reads the whole compiler: once for all forks
    found: dict[tuple[str, str], Callable[[], int]] = {}
    launch = function.run

    def note(kernel: Callable[..., object], *args: object, grid: object, warmup: bool, **options: object) -> None:
        def compiles() -> int:
            launch(kernel, *args, grid=grid, warmup=True, **options)
            return 0

        hooks.jit_cache_hook = lambda *, key, **_: bool(found.setdefault((kernel.__name__, key), compiles))
        compiles()

    function.run = note
    for recipe in recipes:
        with contextlib.suppress(Exception):
            recipe()
    function.run, hooks.jit_cache_hook = launch, None
    return list(found.values())


def of_adapters(config: VllmConfig) -> list[Recipe]:
    """A dense model's layers, as vLLM's wrapper calls the kernels."""
    import torch

    operations = "vllm.lora.ops.triton_ops"
    utils, punica = map(importlib.import_module, (f"{operations}.utils", "vllm.lora.punica_wrapper.punica_gpu"))
    vars(utils)["async_tensor_h2d"] = lambda data, dtype, **_: torch.empty(len(data), dtype=dtype, device="meta")
    for name in ("lora_shrink", "lora_expand"):
        vars(punica)[name] = resolve(f"{operations}.{name}_op:_{name}")
    lora, model, parallel = config.lora_config, config.model_config, config.parallel_config
    if not lora or lora.fully_sharded_loras or model.is_moe or model.use_mla:
        return []
    wrapper = punica.PunicaWrapperGPU(max(KERNEL_TOKEN_COUNTS), 1, "meta", lora_config=lora)
    rank, hidden, vocabulary = lora.max_lora_rank, model.get_hidden_size(), model.get_vocab_size()
    queries = model.get_head_size() * model.get_num_attention_heads(parallel)
    keys = model.get_head_size() * model.get_num_kv_heads(parallel)
    inner = model.hf_text_config.intermediate_size // parallel.tensor_parallel_size
    tensor = functools.partial(torch.empty, dtype=lora.lora_dtype, device="meta")
    added = not resolve("vllm.envs:VLLM_LORA_ENABLE_DUAL_STREAM")

    def layer(tokens: int, width: int, *outs: int) -> None:
        """A linear layer in slices, as the vocabulary's two are in one."""
        utils._LORA_A_PTR_DICT.clear()  # they are known by their addresses, and these have none
        utils._LORA_B_PTR_DICT.clear()
        a = [tensor(lora.max_loras, 1, rank, width) for _ in outs]
        b = [tensor(lora.max_loras, 1, out, rank) for out in outs]
        x, y = tensor(tokens, width), tensor(tokens, sum(outs))
        if outs == (vocabulary,):
            wrapper.add_lora_logits(tensor(tokens, -(-vocabulary // 64) * 64), x, *a, *b, 1.0)
        elif width == rank:
            wrapper.add_lora_embedding(y, x, *b)
        else:
            wrapper.add_lora_linear(y, x, a, b, 1.0, outs, add_inputs=added)

    linear = ((hidden, queries, keys, keys), (queries, hidden), (hidden, inner, inner), (inner, hidden))
    shapes = ((rank, hidden), *linear, (hidden, vocabulary))
    return [functools.partial(layer, tokens, *shape) for tokens in KERNEL_TOKEN_COUNTS for shape in shapes]


def of_sampler(config: VllmConfig) -> list[Recipe]:
    """What vLLM's second model runner launches: it tries its sampler with all that a call can ask for."""
    import torch

    model, scheduler = config.model_config, config.scheduler_config
    rows, vocabulary = min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens // 2), model.get_vocab_size()
    meta = functools.partial(torch.empty, device="meta")
    processed = meta(rows, vocabulary)
    logits = processed if "processed" in model.logprobs_mode else meta(rows, vocabulary, dtype=model.dtype)
    floats, ints, longs = (meta(rows, dtype=dtype) for dtype in (torch.float32, torch.int32, torch.int64))

    def top_k_top_p() -> None:
        if not importlib.util.find_spec("vllm.model_executor.warmup.jit_warmup_triton_helper"):  # vLLM does it itself
            cut = importlib.import_module("vllm.v1.sample.ops.topk_topp_triton")
            vars(cut)["num_compute_units"] = lambda _: rows
            cut.apply_top_k_top_p_triton(processed, ints, floats)

    def gumbel() -> None:
        sample = resolve("vllm.v1.worker.gpu.sample.gumbel:gumbel_sample")
        newer = {"is_drafting": False} if "is_drafting" in inspect.signature(sample).parameters else {}
        sample(processed, ints, floats, longs, longs, False, use_fp64=model.use_fp64_gumbel, **newer)

    def logprobs(number: int) -> None:
        resolve("vllm.v1.worker.gpu.sample.logprob:compute_topk_logprobs")(logits, number, longs)

    def ours() -> None:
        resolve("slipstream_vllm.token_logprobs:sampled_logprobs")(logits, longs)

    return [top_k_top_p, gumbel, functools.partial(logprobs, 5), functools.partial(logprobs, 1), ours]


def begin(config: VllmConfig) -> None:
    """Once for a start, in forks. It may raise whatever this vLLM has not."""
    at_once = cores() - 2
    if _begun or at_once < 1 or config.lora_config is None or (target := capability()) is None:
        return
    _begun.append(os.getpid())
    if config.compilation_config.mode and "TRITON_CACHE_DIR" not in os.environ:
        # torch would move the cache to a folder of its own before the engine asks for the first adapter kernel
        os.environ["TRITON_CACHE_DIR"] = str(Path(resolve("vllm.envs:VLLM_CACHE_ROOT")) / "triton")

    def work() -> int:
        os.nice(10)
        vars(resolve("torch:cuda"))["_is_in_bad_fork"] = lambda: True  # torch itself refuses the GPU
        recipes: list[Recipe] = []
        for part in (of_adapters, of_sampler):
            with contextlib.suppress(Exception):
                recipes += part(config)
        return compile_all(planned(recipes, target), at_once)

    start(work)


def install() -> None:
    """Raises ``ImportError`` or ``AttributeError`` if this vLLM is configured in another way."""
    arguments = resolve("vllm.engine.arg_utils:EngineArgs")
    configure = arguments.create_engine_config

    @functools.wraps(configure)
    def create_engine_config(*args: object, **named: object) -> VllmConfig:
        config: VllmConfig = configure(*args, **named)
        try:
            begin(config)
        except Exception as e:  # whatever it is, the engine compiles as before
            log.debug("slipstream plugin compiles no kernels ahead: %r", e)
        return config

    arguments.create_engine_config = create_engine_config
