"""vLLM learns what a model's class can do in a fork of its own process.

vLLM imports the class in a process of its own, so that its own process does not use CUDA. It starts a new interpreter
for that, which imports torch and vLLM once more: 16 s on an H100's host. A fork has them already. Where this process
has used CUDA before (torchao asks for the GPU when it is imported), nothing is kept by another process, and the class
is imported here. Where either fails or hangs, vLLM does as it did.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pickle
import select
import signal
import sys
import time
from collections.abc import Callable

log = logging.getLogger("vllm.slipstream")
PATIENCE = 60.0
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
    found, end = b"", time.monotonic() + PATIENCE
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


def install() -> None:
    """Put this in vLLM's place."""
    from vllm.model_executor.models import registry

    if sys.platform == "linux":
        vars(registry)["_run_in_subprocess"] = forked(registry._run_in_subprocess)
