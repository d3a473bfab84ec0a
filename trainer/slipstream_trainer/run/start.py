"""A trainer that is ready for its first batch."""

from __future__ import annotations

import logging
import os

from slipstream.client import Client
from slipstream.config import Config
from slipstream_trainer.algorithm.advantage import check_advantage
from slipstream_trainer.algorithm.effects import without_effect
from slipstream_trainer.algorithm.losses import check_loss
from slipstream_trainer.model.policy import check_lora, load_policy
from slipstream_trainer.model.shards import check_sharding, join_group, reshard, shard_base
from slipstream_trainer.run.gpu_lease import GpuLease, Parking, check_share
from slipstream_trainer.run.warmup import warm_up
from slipstream_trainer.step.selfcheck import check_packing
from slipstream_trainer.step.trainer import CapturedGRPOTrainer
from slipstream_trainer.versions.learner import worker_name
from slipstream_trainer.versions.reporting import check_report_to

log = logging.getLogger(__name__)


def threads_of(config: Config, *, beside_engine: bool) -> int | None:
    """Threads for torch; None: torch's choice. With an engine on the same cores two threads wait a lot."""
    import torch

    return config.trainer.threads or (1 if beside_engine and not torch.cuda.is_available() else None)


def start_trainer(config: Config, client: Client | None) -> tuple[CapturedGRPOTrainer, GpuLease]:
    """The policy loaded and checked. ``client``: of the proxy whose engine may share its GPU; None: offline, or not
    the first process.

    Raises ``ConfigError`` for what vLLM would refuse and ``StartError`` for what can't be.
    """
    import torch

    check_lora(config)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    check_share(config)
    check_sharding(config, processes)
    check_report_to(config)
    if config.trainer.algorithm == "grpo":
        check_loss(config.trainer)
        check_advantage(config.trainer.advantage)
    if threads := threads_of(config, beside_engine=client is not None):
        torch.set_num_threads(threads)
    for name, why in without_effect(config.trainer).items():
        log.warning("trainer.%s has no effect: %s", name, why)
    sharded = config.trainer.sharding == "fsdp2"
    loaded = None if sharded else load_policy(config)
    gpu_lease = GpuLease(config, client, worker_name(config), processes)
    if sharded or (gpu_lease.shared and gpu_lease.together):
        join_group()
    with gpu_lease.take():
        model, tokenizer = loaded or load_policy(config)  # a sharded one goes from the files to the GPUs
        if sharded:
            shard_base(model)
        trainer = CapturedGRPOTrainer(model, tokenizer, config, config.root / "trainer")
        check_packing(trainer)
        warm_up(trainer)
        if trainer.sharded:
            reshard(trainer.model)
        if gpu_lease.shared and torch.cuda.is_available():
            gpu_lease.parking = Parking(model)
    return trainer, gpu_lease
