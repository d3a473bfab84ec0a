"""One GPU for engine and trainer (``engine.share``): the trainer takes turns with the engine.

In a turn the proxy lets new calls wait and vLLM sleeps; between turns the base model's weights wait in pinned host
memory, and the trainer keeps nothing on the GPU but the LoRA weights and their optimiser (some hundred megabytes)
and CUDA's own context.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import re
import threading
import time
from collections.abc import Iterator

import torch

from slipstream.client import Client
from slipstream.config import Config
from slipstream.contract import Hold, HoldIn
from slipstream.errors import ApiError, StartError, Unavailable
from slipstream.shared.backoff import Backoff
from slipstream_trainer.versions.publisher import BUSY, FIRST_PAUSE, LAST_PAUSE, Stop

log = logging.getLogger(__name__)
TTL = 30.0
"""Seconds after which the engine wakes when nothing is heard of a trainer that holds it."""
RENEW = 5.0


def worker_name(config: Config) -> str:
    """Under which the trainer leases."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", f"trainer-{config.model_name}")[:128]


class Parking:
    """Where a frozen base waits. Made before the model moves to a GPU: frozen weights need no copy back."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.host: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
        if torch.cuda.is_available():
            self.host = [
                (p, _pinned(p.data)) for p in model.parameters() if not p.requires_grad and p.device.type == "cpu"
            ]
            self.leave()

    def leave(self) -> None:
        """Free the GPU."""
        for parameter, host in self.host:
            parameter.data = host
        if self.host:
            gc.collect()
            torch.cuda.empty_cache()

    def enter(self, device: torch.device) -> None:
        for parameter, host in self.host:
            parameter.data = host.to(device, non_blocking=True)
        if self.host:
            torch.cuda.synchronize(device)


def _pinned(data: torch.Tensor) -> torch.Tensor:
    try:
        return data.pin_memory()
    except RuntimeError as e:  # too little memory may be locked: slower copies
        log.warning("the base's weights can't be pinned (%s): copies to the GPU are slower", e)
        return data


class GpuLease:
    """``take`` a turn: the block has the GPU. Without ``engine.share`` it always has."""

    def __init__(self, config: Config, client: Client | None, worker: str, parking: Parking | None = None) -> None:
        self.shared = config.engine.share and client is not None
        self.client, self.worker, self.parking = client, worker, parking
        self.device: torch.device | None = None
        """Where the base goes in a turn; None as long as nobody has moved the model there for the first time."""
        self.stop = threading.Event()

    @contextlib.contextmanager
    def take(self) -> Iterator[dict[str, float]]:
        """Yields figures that are complete when the block has ended: ``hold_seconds`` (no call began),
        ``sleep_seconds``, ``wake_seconds``.

        Raises ``Stop`` when the process is to end before the GPU is there, ``StartError`` where the proxy does not
        know of sharing.
        """
        figures: dict[str, float] = {}
        if not self.shared:
            yield figures
            return
        began = time.perf_counter()
        done = threading.Event()
        try:
            figures["sleep_seconds"] = self._hold().sleep_seconds
            renewing = threading.Thread(target=self._renew, args=(done,), daemon=True, name="hold")
            renewing.start()
            try:
                self._enter()
                yield figures
            finally:
                self._leave()
                done.set()
                renewing.join()
        finally:
            figures["wake_seconds"] = self._release()
            figures["hold_seconds"] = time.perf_counter() - began

    def _enter(self) -> None:
        if self.parking is not None and self.device is not None:
            self.parking.enter(self.device)

    def _leave(self) -> None:
        if self.parking is not None:
            self.parking.leave()

    def _ask(self) -> Hold:
        assert self.client is not None
        return self.client.hold_engine(HoldIn(worker=self.worker, seconds=TTL))

    def _hold(self) -> Hold:
        backoff, said = Backoff(FIRST_PAUSE, LAST_PAUSE), False
        while True:
            try:
                if (hold := self._ask()).ready:
                    return hold
                continue  # the engine is falling asleep: asking waits for it
            except ApiError as e:
                if e.status in (404, 405):
                    raise StartError(f"engine.share: this proxy can't let the engine sleep: {e}") from e
                if e.status == 409 and "share" in str(e):
                    raise StartError(f"engine.share is set here and not at the proxy: {e}") from e
                if not isinstance(e, Unavailable) and e.status not in (409, *BUSY):
                    raise
                if not said:
                    log.warning("the engine does not give way: %s; trying until it does", e)
                    said = True
            if backoff.wait(self.stop):
                raise Stop

    def _renew(self, done: threading.Event) -> None:
        while not done.wait(RENEW):
            try:
                self._ask()
            except ApiError as e:
                log.warning("the hold of the engine could not be renewed: %s", e)

    def _release(self) -> float:
        """→ Seconds that the engine took to wake. What can't be released ends by itself after ``TTL``."""
        assert self.client is not None
        try:
            return self.client.release_engine(self.worker).wake_seconds
        except ApiError as e:
            log.warning("the engine could not be released, it wakes in %.0f s: %s", TTL, e)
            return 0.0


def check_share(config: Config, processes: int) -> None:
    """Raises ``StartError`` for what can't share a GPU with the engine."""
    if not config.engine.share:
        return
    if processes > 1:
        raise StartError("engine.share is for one GPU: start the trainer with one process, or give it GPUs of its own")
    if config.trainer.quantize == "4bit" or config.trainer.mode == "frugal":
        what = "quantize = 4bit" if config.trainer.quantize == "4bit" else "mode = frugal"
        raise StartError(
            f"engine.share with trainer.{what}: such a base can't leave the GPU. "
            "Without engine.share both stay resident, see engine.gpu_memory"
        )
