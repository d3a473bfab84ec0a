"""A base that is too large for one GPU: each process keeps a part of its weights (FSDP2) and gathers a layer's when
it computes it.

Only the frozen base is sharded. The LoRA weights are small: every process has all of them, so that gradients,
guards, checkpoints and adapters are what they are without sharding. All processes must compute equally often,
because every forward and backward gathers: ``even`` sees to that.

Each process reads its own rows of each weight from the files, onto its GPU: no host holds the base. transformers does
that (``DistributedConfig``). A base that is stored quantised, and one whose files name rows otherwise than the model
does, are read whole first.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from slipstream.config import Config
from slipstream.errors import StartError
from slipstream_trainer.batch.layout import MicroBatch, Plan, Slots
from slipstream_trainer.batch.scatter import Share, plan_of, shares
from slipstream_trainer.model.memory import decoder_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from accelerate import PartialState
    from peft import PeftModel
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)
FREED_WEIGHT = "free_full_weight"
"""transformers' word: a layer's gathered weights go after its forward."""


def check_sharding(config: Config, processes: int) -> None:
    """Raises ``StartError`` for what can't be sharded."""
    t = config.trainer
    if t.sharding == "ddp":
        return
    if processes == 1:
        raise StartError("trainer.sharding = fsdp2 needs several processes: slipstream trainer --processes N")
    if t.quantize != "none" or t.mode == "frugal":
        raise StartError("trainer.sharding = fsdp2 takes an unquantised base and mode auto, tree or merged")


def join_group() -> PartialState:
    """The process group; accelerate finds it here later."""
    from accelerate import PartialState

    return PartialState(cpu=not torch.cuda.is_available())


def reading_options(bare: PreTrainedModel) -> dict[str, Any]:
    """Of ``from_pretrained``, so that it shards a model like ``bare`` (without weights) before it reads, and each
    process reads its own rows alone. Empty: the weights have to be read whole.
    """
    from transformers.distributed.configuration_utils import DistributedConfig

    processes = join_group().num_processes
    if mixed := _mixed_rows(bare, processes):
        log.warning("every process reads the whole base into the host's memory: %s", mixed)
        return {}
    names = {module: name for name, module in bare.base_model.named_modules()}
    gathered = [bare.get_input_embeddings(), *decoder_layers(bare)]
    vars(bare.config)["base_model_fsdp_plan"] = {names[module]: FREED_WEIGHT for module in gathered if module in names}
    type(bare)._fsdp_plan = None  # it would gather the head when that is called, and the scored positions alone see it
    return {
        "config": bare.config,
        "distributed_config": DistributedConfig(fsdp_size=processes),
    }


def forget_reading(base: PreTrainedModel) -> None:
    """Take away what ``reading_options`` left: PEFT would gather the whole base in the one process that saves an
    adapter, and no report of the settings could be written.
    """
    vars(base.config).pop("distributed_config", None)
    vars(base).pop("_tp_size", None)


def _mixed_rows(bare: PreTrainedModel, processes: int) -> str | None:
    """Why a process can't read its share of the rows of each weight, or None: an operation makes rows of the model's
    weights out of other rows of the files. Experts that are weights of their own in the files are rows of the
    model's, and are read whole by the process that has them; each must have one.
    """
    from transformers import conversion_mapping, core_model_loading

    kind = bare.config.model_type
    for found in conversion_mapping.get_model_conversion_mapping(bare):
        for done in getattr(found, "operations", ()):
            if isinstance(done, core_model_loading.MergeModulelist) and done.dim == 0:
                few = min((len(p) for p in bare.parameters() if p.dim() == 3), default=processes)
                if (processes - 1) * -(-few // processes) >= few:
                    return f"{few} experts of {kind} leave none for some of {processes} processes"
                continue
            if isinstance(done, core_model_loading.Concatenate) and done.dim > 0:
                continue
            if isinstance(done, core_model_loading.Transpose) and min(done.dim0, done.dim1) > 0:
                continue
            return f"the files of {kind} keep rows otherwise than the model does ({type(done).__name__})"
    return None


def is_sharded(model: torch.nn.Module) -> bool:
    from torch.distributed.fsdp import FSDPModule

    return any(isinstance(module, FSDPModule) for module in model.modules())


def shard_base(model: PeftModel) -> None:
    """Shard a PEFT model's frozen weights over all processes, layer by layer, unless they were read so. Before the
    trainer sees it.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    state = join_group()
    lora = {p for p in model.parameters() if p.requires_grad}
    for parameter in lora:  # left alone by FSDP, so moved by us
        parameter.data = parameter.data.to(state.device)
    if is_sharded(model):
        return
    mesh = init_device_mesh(state.device.type, (state.num_processes,))
    for layer in decoder_layers(model.get_base_model()):
        fully_shard(layer, mesh=mesh, ignored_params=lora)
    fully_shard(model, mesh=mesh, ignored_params=lora)


def even(plan: Plan, processes: int) -> Plan:
    """The plan with micro-batches that score nothing at its end, so that each process has as many as the others."""
    short = -len(plan.micro) % processes
    plan.micro.extend(_idle(min(plan.micro, key=lambda m: m.computed)) for _ in range(short))
    return plan


def scatter(plan: Plan | None, rank: int, processes: int) -> Plan | None:
    """The first process's plan, with this process's rows alone. None: it has no further one."""
    box: list[Share | None] = [None]
    sent = shares(plan, processes) if plan is not None else [None] * processes
    torch.distributed.scatter_object_list(box, sent if rank == 0 else None, src=0)
    return plan if rank == 0 else plan_of(box[0]) if box[0] is not None else None


def _idle(micro: MicroBatch) -> MicroBatch:
    nothing = np.zeros(0, dtype=np.int64)
    return MicroBatch(micro.ids_RN, micro.positions_RN, micro.ends_RN, 0, Slots(nothing, nothing, nothing))


def looked_at(micro: Sequence[MicroBatch], processes: int, most: int) -> int:
    """How many of its first micro-batches each process computes for ``most`` tokens: as many as the one with most."""
    found = 1
    for rank in range(processes):
        computed = 0
        for n, m in enumerate(micro[rank::processes]):
            if n and computed + m.computed > most:
                break
            computed += m.computed
            found = max(found, n + 1)
    return found


def reshard(model: torch.nn.Module) -> None:
    """Give back what was gathered. Saving does so in its own process alone; the next gather would be out of step."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
