"""What GPU and engine do while agents work, ten times a second."""

from __future__ import annotations

import importlib
import os
import statistics
import threading
import time
import urllib.error
import urllib.request
from typing import Any

__all__ = ["Watch", "busy_share"]

PERIOD = 0.1
ENGINE_PERIOD = 0.25


class Watch:
    """Samples in a thread of its own, from ``start`` to ``stop``."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.gpu: list[tuple[float, int]] = []
        """(time, utilisation in %), where there is an NVIDIA GPU."""
        self.running: list[tuple[float, float]] = []
        """(time, requests that the engine computes)."""
        self._end = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._watch_gpu, self._watch_engine)]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End."""
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _watch_gpu(self) -> None:
        try:
            nvml: Any = importlib.import_module("pynvml")
            nvml.nvmlInit()
            device = nvml.nvmlDeviceGetHandleByIndex(first_visible())
        except Exception:  # no GPU here
            return
        while not self._end.wait(PERIOD):
            self.gpu.append((time.time(), int(nvml.nvmlDeviceGetUtilizationRates(device).gpu)))

    def _watch_engine(self) -> None:
        while not self._end.wait(ENGINE_PERIOD):
            try:
                with urllib.request.urlopen(f"{self.engine}/metrics", timeout=2) as reply:  # noqa: S310
                    text = reply.read().decode()
            except (urllib.error.URLError, TimeoutError, OSError):
                continue
            lines = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running")]
            self.running.append((time.time(), sum(float(line.rsplit(" ", 1)[1]) for line in lines)))


def first_visible() -> int:
    """The number of the GPU that programs here see first. NVML shows all of them, whatever this variable says."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    return int(first) if first.isdecimal() else 0


def busy_share(watch: Watch, steps: list[tuple[float, float]], since: float, until: float) -> dict[str, float | None]:
    """How busy the GPU was between two times. `steps`: (begin, end) of what the trainer did.

    `gpu_busy`: mean utilisation (the share of time in which a kernel ran). `gpu_used`: samples with any. `sampling_or_training`:
    the share of time in which the engine had requests or the trainer a step.
    """
    inside = [u for at, u in watch.gpu if since <= at <= until]
    samples = [(at, running > 0) for at, running in watch.running if since <= at <= until]
    at_work = [busy or any(begin <= at <= end for begin, end in steps) for at, busy in samples]
    return {
        "gpu_busy": statistics.fmean(inside) / 100 if inside else None,
        "gpu_used": statistics.fmean(u > 0 for u in inside) if inside else None,
        "sampling": statistics.fmean(busy for _, busy in samples) if samples else None,
        "sampling_or_training": statistics.fmean(at_work) if at_work else None,
    }
