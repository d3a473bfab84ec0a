"""vLLM imports itself once for a start.

**A model's class.** vLLM imports it in a process of its own, so that its own process does not use CUDA. It starts a new
interpreter for that, which imports torch and vLLM once more: 16 s on an H100's host. A fork has them already. Where
this process has used CUDA before (torchao asks for the GPU when it is imported), there is nothing to keep it from, and
the class is imported here. Where either fails or hangs, vLLM does as it did.

**API servers.** vLLM starts several as new interpreters, and its engine waits until all have imported vLLM: 10 s. They
are forked where the engine's process is (``VLLM_WORKER_MULTIPROC_METHOD=fork``, which vLLM itself takes back once CUDA
is in use).

**The trainer beside it.** vLLM measures the free memory of the GPU, so nobody else may take any until it has its own.
From then on it compiles kernels and records graphs, 10 s and more. ``SLIPSTREAM_ENGINE_SETTLED`` names a file that is
written at that moment: the trainer loads its model meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import multiprocessing
import os
import pickle
import select
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.context import BaseContext
from pathlib import Path

log = logging.getLogger("vllm.slipstream")
FORK_TIMEOUT_S = 60.0
"""Seconds that a fork may take."""


def _write(fd: int, work: Callable[[], object]) -> None:
    """In the fork: the answer, and then the fork ends without its parent's clean-up."""
    status = 1
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(pickle.dumps(work()))
        status = 0
    finally:
        os._exit(status)


def _read(fd: int) -> bytes | None:
    """All that the fork writes. None: it took too long."""
    found, end = b"", time.monotonic() + FORK_TIMEOUT_S
    while select.select([fd], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(fd, 1 << 16)
        if not part:
            return found
        found += part
    return None


def forked(original: Callable[[Callable[[], object]], object]) -> Callable[[Callable[[], object]], object]:
    """``registry._run_in_subprocess``, in a fork where that can be."""

    @functools.wraps(original)
    def run(fn: Callable[[], object]) -> object:
        if "torch" not in sys.modules:
            return original(fn)
        import torch

        if torch.cuda.is_initialized():
            try:
                return fn()
            except Exception as e:  # whatever it is, vLLM meets it again and says it
                log.debug("the model's class is looked at in a new process: %r", e)
                return original(fn)
        inward, outward = os.pipe()
        child = os.fork()
        if not child:
            _write(outward, fn)
        os.close(outward)
        try:
            found = _read(inward)
        finally:
            os.close(inward)
        if found is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if status or not found:
            log.debug("the model's class is looked at in a new process: the fork ended with %s", status)
            return original(fn)
        return pickle.loads(found)  # noqa: S301 - its own fork wrote it

    return run


_parents: list[object] = []


def _leave_metrics_to_parent() -> None:
    """The folder of the figures is the parent's to remove: a new interpreter would not know it. It is kept alive here,
    because it removes itself with its last name.
    """
    from vllm.v1.metrics import prometheus

    _parents.append(vars(prometheus).get("_prometheus_multiproc_dir"))
    vars(prometheus)["_prometheus_multiproc_dir"] = None


class Starting:
    """``multiprocessing`` as ``vllm.v1.utils`` sees it."""

    def __getattr__(self, name: str) -> object:
        return getattr(multiprocessing, name)

    def get_context(self, method: str | None = None) -> BaseContext:
        """Of API servers: forks instead of new interpreters, where vLLM forks its engine."""
        if method != "spawn" or os.environ.get("VLLM_WORKER_MULTIPROC_METHOD") != "fork":
            return multiprocessing.get_context(method)
        from prometheus_client import values

        os.register_at_fork(after_in_child=_leave_metrics_to_parent)
        # vLLM names the folder in which they share their figures only after this process has imported the library
        vars(values)["ValueClass"] = values.get_value_class()  # type: ignore[no-untyped-call]
        return multiprocessing.get_context("fork")


def warm_up_sooner() -> None:
    """What is there is left out when garbage is collected: vLLM collects for each graph that it records, and looks
    through all its libraries' objects each time. Raises ``ImportError`` or ``AttributeError`` if this vLLM has another
    worker.
    """
    from vllm.v1.worker.gpu_worker import Worker

    original = Worker.compile_or_warm_up_model

    @functools.wraps(original)
    def warm_up(self: Worker) -> object:
        if path := os.environ.get("SLIPSTREAM_ENGINE_SETTLED"):
            with contextlib.suppress(OSError):
                Path(path).touch()
        gc.freeze()  # vLLM collected before it measured its memory, and freezes, too, when it has warmed up
        return original(self)

    Worker.compile_or_warm_up_model = warm_up


def install() -> None:
    """Put both in vLLM's place. Raises ``ImportError`` or ``AttributeError`` if this vLLM has others."""
    from vllm.model_executor.models import registry
    from vllm.v1 import utils

    if sys.platform == "linux":
        vars(registry)["_run_in_subprocess"] = forked(registry._run_in_subprocess)
        if vars(utils)["multiprocessing"] is multiprocessing:
            vars(utils)["multiprocessing"] = Starting()
