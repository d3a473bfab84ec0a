"""Several processes, one trainer: the first talks to the proxy and tells the others what to do; each computes its
share of every batch.

Each has the whole base, or a part of it (``shards.py``). Gradients of the LoRA weights are summed (a few
megabytes), so processes need neither equal rows nor a wrapper.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from slipstream.client import Client
from slipstream.config import Config
from slipstream_trainer.guards import Snapshot
from slipstream_trainer.worker import Worker

if TYPE_CHECKING:
    from slipstream_trainer.gpu_lease import GpuLease
    from slipstream_trainer.rows import Sample
    from slipstream_trainer.step import Result
    from slipstream_trainer.trainer import CapturedGRPOTrainer


def is_first() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


def leave() -> None:
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _send(order: Any) -> Any:
    """From the first process to all. → The order, on every process."""
    box = [order]
    dist.broadcast_object_list(box, src=0)
    return box[0]


class Leader(Worker):
    """Gives an order for everything that the others must do too. Between batches it says that it is still there."""

    def run(self) -> int:
        try:
            return super().run()
        finally:
            _send(("stop", None))

    def once(self) -> bool:
        if not (found := super().once()):
            _send(("idle", None))
        return found

    def train(self, samples: list[Sample]) -> Result:
        self._interruptible = False  # the others are in the middle of it: it is finished first
        weights = Snapshot.take(self.trainer.model, self.trainer.optimizer)
        _send(("train", (samples, self.current.state.pace, self.current.state.step, weights)))
        return super().train(samples)


def lead(config: Config, client: Client, trainer: CapturedGRPOTrainer, gpu_lease: GpuLease) -> Worker:
    return (Leader if trainer.world > 1 else Worker)(config, client, trainer, gpu_lease)


def follow(trainer: CapturedGRPOTrainer) -> int:
    """Do what the first process says until it says stop."""
    import signal

    from slipstream_trainer.step import train

    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, signal.SIG_IGN)  # the first process says when to stop
    while True:
        order, what = _send(None)
        if order == "stop":
            return 0
        if order == "train":
            samples, pace, step, weights = what
            weights.restore(trainer.model, trainer.optimizer)
            train(trainer, samples, pace, step)
