"""The same GPUs for engine and trainer (``engine.share``): the trainer takes turns with the engine.

In a turn the proxy lets new calls wait and vLLM sleeps; between turns the base model's weights wait in pinned host
memory, and the trainer keeps nothing on the GPU but the LoRA weights and their optimiser (some hundred megabytes)
and CUDA's own context. Of several processes the first one asks for the turn, and all of them take it.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from slipstream.client import Client
from slipstream.config import Config
from slipstream.contract import Hold, HoldIn
from slipstream.errors import ApiError, StartError, Unavailable
from slipstream.shared.backoff import Backoff
from slipstream_trainer.model.shards import reshard
from slipstream_trainer.versions.learner import Stop
from slipstream_trainer.versions.publisher import FIRST_PAUSE, LAST_PAUSE, RETRIED_STATUSES

log = logging.getLogger(__name__)
LEASE_TTL_S = 30.0
"""Seconds after which the engine wakes when nothing is heard of a trainer that holds it."""
RENEW_INTERVAL_S = 5.0
ENTER_WORD, LEAVE_WORD = "enter", "leave"
"""What the first process tells the others about a turn."""


class Parking:
    """Where a frozen base waits between turns. Its tensors stay, without memory of their own, so that a base that is
    sharded over processes (FSDP2) can wait as well. Frozen weights need no copy back.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.waiting: list[tuple[torch.UntypedStorage, torch.Tensor]] = []
        """The memory of each weight, or of this process's part of it, and its copy on the host."""
        self._host = torch.empty(0, dtype=torch.uint8)
        """All copies, one after the other: memory is locked by pages, and no two share one that way."""
        self._pinning: threading.Thread | None = None

    def leave(self) -> None:
        """Free the GPU."""
        reshard(self.model)
        if first := not self.waiting:
            storages = _storages(self.model)
            sizes = [s.nbytes() for s in storages]
            self._host = torch.empty(sum(sizes), dtype=torch.uint8)
            self.waiting = list(zip(storages, self._host.split(sizes), strict=True))
            for storage, host in self.waiting:
                host.copy_(_bytes(storage))
        for storage, _ in self.waiting:
            storage.resize_(0)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if first:
            self._pinning = threading.Thread(target=self._pin, daemon=True, name="pin")
            self._pinning.start()

    def _pin(self) -> None:
        """Lock the copies in memory, where they are: the GPU then reads them itself. For a large model this takes
        longer than agents should wait for their first turn, so that it has a thread of its own.
        """
        if not torch.cuda.is_available():
            return
        with torch.cuda.device(self.waiting[0][0].device):
            code = int(torch.cuda.cudart().cudaHostRegister(self._host.data_ptr(), self._host.numel(), 0))
        if code:  # too little memory may be locked
            log.warning("the base's weights can't be pinned (CUDA error %d): turns begin later", code)

    def settle(self) -> None:
        """Wait until the copies are pinned: before the engine is asked to sleep."""
        if self._pinning is not None:
            self._pinning.join()

    def enter(self) -> None:
        """Weights back to where they were; nothing before the first ``leave``."""
        self.settle()
        for storage, host in self.waiting:
            storage.resize_(host.numel())
            _bytes(storage).copy_(host, non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def _storages(model: torch.nn.Module) -> list[torch.UntypedStorage]:
    """The memory of all frozen weights, each once."""
    from torch.distributed.tensor import DTensor

    own = (p.data for p in model.parameters() if not p.requires_grad)
    parts = (d.to_local() if isinstance(d, DTensor) else d for d in own)
    found = {s.data_ptr(): s for s in (part.untyped_storage() for part in parts) if s.nbytes()}
    return list(found.values())


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def tell(order: Any) -> Any:
    """From the first process to all. → The order, on every process."""
    box = [order]
    dist.broadcast_object_list(box, src=0)
    return box[0]


class GpuLease:
    """``take`` a turn: the block has the GPUs. Without ``engine.share`` it always has.

    ``client``: of the first process. The others take a turn when that one tells them, and leave before it ends.
    """

    def __init__(self, config: Config, client: Client | None, worker: str, processes: int = 1) -> None:
        self.together = processes > 1
        self.shared = config.engine.share and (client is not None or self.together)
        self.client, self.worker = client, worker
        self.parking: Parking | None = None
        """None: nothing has been loaded yet."""
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
        elif self.client is None:
            tell(None)
            self.enter()
            yield figures
            tell(None)
            self.leave()
        else:
            yield from self._turn(figures)

    def _turn(self, figures: dict[str, float]) -> Iterator[dict[str, float]]:
        if self.parking is not None:
            self.parking.settle()
        began = time.perf_counter()
        done = threading.Event()
        torn = False
        try:
            figures["sleep_seconds"] = self._hold().sleep_seconds
            renewing = threading.Thread(target=self._renew, args=(done,), daemon=True, name="hold")
            renewing.start()
            try:
                self._tell(ENTER_WORD)
                self.enter()
                yield figures
            except Stop:
                raise
            except BaseException:
                torn = self.together
                raise
            finally:
                if not torn:
                    self._tell(LEAVE_WORD)
                    self.leave()
                done.set()
                renewing.join()
        finally:
            if not torn:  # else the others are in the middle of it: the engine wakes when all processes have ended
                figures["wake_seconds"] = self._release()
            figures["hold_seconds"] = time.perf_counter() - began

    def _tell(self, order: str) -> None:
        if self.together:
            tell((order, None))

    def enter(self) -> None:
        """The base to the GPU."""
        if self.parking is not None:
            self.parking.enter()

    def leave(self) -> None:
        """The base to the host. Ends when every process has left the GPUs."""
        if self.parking is not None:
            self.parking.leave()
        if self.together:
            dist.barrier()

    def _ask(self) -> Hold:
        assert self.client is not None
        return self.client.hold_engine(HoldIn(worker=self.worker, seconds=LEASE_TTL_S))

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
                if e.status == 409 and e.field != "body.worker":  # no other worker has it: it is not shared there
                    raise StartError(f"engine.share is set here and not at the proxy: {e}") from e
                if not isinstance(e, Unavailable) and e.status not in (409, *RETRIED_STATUSES):
                    raise
                if not said:
                    log.warning("the engine does not give way: %s; trying until it does", e)
                    said = True
            if backoff.wait(self.stop):
                raise Stop

    def _renew(self, done: threading.Event) -> None:
        while not done.wait(RENEW_INTERVAL_S):
            try:
                self._ask()
            except ApiError as e:
                log.warning("the hold of the engine could not be renewed: %s", e)

    def _release(self) -> float:
        """→ Seconds that the engine took to wake. What can't be released ends by itself after ``LEASE_TTL_S``."""
        assert self.client is not None
        try:
            return self.client.release_engine(self.worker).wake_seconds
        except ApiError as e:
            log.warning("the engine could not be released, it wakes in %.0f s: %s", LEASE_TTL_S, e)
            return 0.0


def check_share(config: Config) -> None:
    """Raises ``StartError`` for what can't share a GPU with the engine."""
    if not config.engine.share:
        return
    if config.trainer.quantize == "4bit" or config.trainer.mode == "frugal":
        what = "quantize = 4bit" if config.trainer.quantize == "4bit" else "mode = frugal"
        raise StartError(
            f"engine.share with trainer.{what}: such a base can't leave the GPU. "
            "Without engine.share both stay resident, see engine.gpu_memory"
        )
