"""A trainer that is ready for its first batch."""

from __future__ import annotations

import logging
import os

from slipstream.client import Client
from slipstream.config import Config
from slipstream_trainer.effects import without_effect
from slipstream_trainer.policy import check_lora, load_policy
from slipstream_trainer.reporting import check_report_to
from slipstream_trainer.selfcheck import check_packing
from slipstream_trainer.shards import check_sharding, reshard, shard_base
from slipstream_trainer.sharing import Parking, Turns, check_share, worker_name
from slipstream_trainer.trainer import CapturedGRPOTrainer

log = logging.getLogger(__name__)


def threads_of(config: Config, *, beside_engine: bool) -> int | None:
    """Threads for torch; None: torch's choice. An engine on the same cores and a second thread here wait for each other at every barrier."""
    import torch

    return config.trainer.threads or (1 if beside_engine and not torch.cuda.is_available() else None)


def start_trainer(config: Config, client: Client | None) -> tuple[CapturedGRPOTrainer, Turns]:
    """The policy loaded and checked. ``client``: of the proxy whose engine may share its GPU; None: offline, or not the first process.

    Raises ``ConfigError`` for what vLLM would refuse and ``StartError`` for what can't be.
    """
    import torch

    check_lora(config)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    check_share(config, processes)
    check_sharding(config, processes)
    check_report_to(config)
    if threads := threads_of(config, beside_engine=client is not None):
        torch.set_num_threads(threads)
    for name, why in without_effect(config.trainer).items():
        log.warning("trainer.%s has no effect: %s", name, why)
    model, tokenizer = load_policy(config)
    if config.trainer.sharding == "fsdp2":
        shard_base(model)
    turns = Turns(config, client, worker_name(config), Parking(model) if config.engine.share and client else None)
    with turns.take():
        trainer = CapturedGRPOTrainer(model, tokenizer, config, config.root / "trainer")
        check_packing(trainer)
        if trainer.sharded:
            reshard(trainer.model)
        turns.device = trainer.device
    return trainer, turns
