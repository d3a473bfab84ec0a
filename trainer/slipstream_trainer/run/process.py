"""The trainer's process, alone or one of several.

Several processes, one trainer: the first talks to the proxy, tells the others what to do, and lays batches out; each
gets and computes its share of every batch.

Each has the whole base, or a part of it (``shards.py``). Gradients of the LoRA weights are summed (a few
megabytes), so processes need neither equal rows nor a wrapper.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from slipstream.client import Client
from slipstream.config import Config
from slipstream_trainer.model.policy import check_lora
from slipstream_trainer.model.weights import changes_of
from slipstream_trainer.run.gpu_lease import ENTER_WORD, LEAVE_WORD, GpuLease, tell
from slipstream_trainer.run.tenants import TenantWorkers
from slipstream_trainer.run.worker import Worker, uninterrupted
from slipstream_trainer.versions.checkpoint import only_one
from slipstream_trainer.versions.common_start import Others
from slipstream_trainer.versions.turns import TrainerTurns

if TYPE_CHECKING:
    from slipstream_trainer.batch.rows import Sample
    from slipstream_trainer.step.result import Result
    from slipstream_trainer.step.trainer import CapturedGRPOTrainer


log = logging.getLogger(__name__)


def is_first() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


def leave() -> None:
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


class Leader(Worker):
    """Gives an order for everything that the others must do too. Between batches it says that it is still there."""

    def once(self) -> bool:
        if not (found := super().once()):
            self.idle()
        return found

    def idle(self) -> None:
        with self.seat.turns.held(self.seat, 0):
            tell(("idle", None))

    def train(self, samples: list[Sample]) -> Result:
        self.trainer.interrupt = uninterrupted  # the others are in the middle of it: it is finished first
        state, turns = self.current.state, self.seat.turns
        if turns.told is not self.seat:
            tell(("learner", self.config.model_dump_json()))
            turns.told = self.seat
        same = turns.weights_told == changes_of(self.trainer.model)
        tell(("train", (state.pace, state.step, None if same else self.trainer.learner.save())))
        result = super().train(samples)
        turns.weights_told = changes_of(self.trainer.model)  # each has made the same step
        return result


def warn_of_restarts() -> None:
    """Where torchrun starts processes again that then find each other by chance alone."""
    if (
        int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
        and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    ):
        log.warning(
            "torchrun starts all processes again when one has died, and they may look for each other at addresses of "
            "those before: set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun"
        )


def lead(
    config: Config,
    client: Client,
    trainer: CapturedGRPOTrainer,
    gpu_lease: GpuLease,
    turns: TrainerTurns | None = None,
    others: Others | None = None,
) -> Worker:
    return (Leader if trainer.world > 1 else Worker)(config, client, trainer, gpu_lease, turns, others)


def follow(trainer: CapturedGRPOTrainer, gpu_lease: GpuLease) -> int:
    """Do what the first process says until it says stop."""
    from slipstream_trainer.step import step

    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, signal.SIG_IGN)  # the first process says when to stop
    while True:
        order, what = tell(None)
        if order == "stop":
            return 0
        if order == ENTER_WORD:
            gpu_lease.enter()
        if order == LEAVE_WORD:
            gpu_lease.leave()
        if order == "learner":
            trainer.config = trainer.learner.config = Config.model_validate_json(what)
        if order == "train":
            pace, applied, weights = what
            if weights is not None:
                trainer.learner.restore(weights)
            step.follow(trainer, pace, applied)


def main(config: Config, find: Callable[[], str | None], key: str | None = None) -> int:
    """Train until told to stop. ``find``: the proxy's URL, as soon as there is one. The model is loaded before, where
    no turn on the GPU has to be asked for.

    Raises ``StartError`` and ``ConfigError``; otherwise returns the exit code.
    """
    check_lora(config)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from slipstream_trainer.run.start import start_trainer

    try:
        if not is_first():
            return follow(*start_trainer(config, None))
        warn_of_restarts()
        with only_one(config.checkpoints_dir):
            loaded = start_trainer(config, None) if torch.cuda.is_available() and not config.engine.share else None
            url = find()
            with Client(url, key) as client:
                worker = lead(config, client, *(loaded or start_trainer(config, client)))
                worker.handle_signals()
                try:
                    return TenantWorkers(worker, url, key, lead).run()
                finally:
                    if worker.trainer.world > 1:
                        tell(("stop", None))
    finally:
        leave()
