"""A trainer that is ready for its first batch."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, cast

from slipstream.client import Client
from slipstream.config import Config
from slipstream.errors import ConfigError
from slipstream.settings.trainer import BACKEND_CLASSES
from slipstream.shared.functions import load_object
from slipstream_trainer.algorithm.advantage import check_advantage
from slipstream_trainer.algorithm.effects import without_effect
from slipstream_trainer.algorithm.losses import check_loss
from slipstream_trainer.model.learner import Learner, check_capabilities
from slipstream_trainer.model.policy import check_lora, load_policy, load_tokenizer, model_path
from slipstream_trainer.model.shards import check_sharding, join_group, reshard, shard_base
from slipstream_trainer.model.torch_learner import TorchLearner
from slipstream_trainer.run.gpu_lease import GpuLease, Parking, check_share
from slipstream_trainer.run.warmup import here_of, warm_up
from slipstream_trainer.step.selfcheck import check_packing
from slipstream_trainer.step.trainer import CapturedGRPOTrainer
from slipstream_trainer.versions.learner import worker_name
from slipstream_trainer.versions.reporting import check_report_to

if TYPE_CHECKING:
    from peft import PeftModel

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
    backend = config.trainer.backend
    kind = load_object("trainer.backend", BACKEND_CLASSES.get(backend, backend), "Class")
    if not (isinstance(kind, type) and issubclass(kind, Learner)):
        raise ConfigError(f"trainer.backend = {backend!r} is no subclass of slipstream_trainer.model.learner:Learner")
    check_capabilities(config, kind.capabilities)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    check_share(config)
    check_sharding(config, processes)
    check_report_to(config)
    if config.trainer.algorithm == "grpo":
        check_loss(config.trainer, entropy=kind.capabilities.vocabulary)
        check_advantage(config.trainer.advantage)
    if threads := threads_of(config, beside_engine=client is not None):
        torch.set_num_threads(threads)
    for name, why in without_effect(config.trainer).items():
        log.warning("trainer.%s has no effect: %s", name, why)
    if kind is not TorchLearner:
        learner, tokenizer = kind.start(config), load_tokenizer(model_path(config))
        output = config.root / "trainer"
        trainer = CapturedGRPOTrainer(_unused_model(), tokenizer, config, output, learner)
        return trainer, GpuLease(config, client, worker_name(config), processes)
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
        check_packing(here_of(trainer))
        warm_up(trainer)
        if trainer.sharded:
            reshard(trainer.model)
        if gpu_lease.shared and torch.cuda.is_available():
            gpu_lease.parking = Parking(model)
    return trainer, gpu_lease


def _unused_model() -> PeftModel:
    """TRL wants a model. Where another learner computes, it gets one that nobody computes with."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {"vocab_size": 2, "hidden_size": 2, "intermediate_size": 2, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=1, bos_token_id=0, eos_token_id=1))
    return cast("PeftModel", get_peft_model(model, LoraConfig(r=1, target_modules=["q_proj"], task_type="CAUSAL_LM")))
