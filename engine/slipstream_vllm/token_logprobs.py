# ruff: noqa: ANN001, ANN202 - Triton reads the kernels' parameters itself
"""On the GPU: the sampled tokens' log-probabilities and ranks in one pass over the logits, spread over many programs.

vLLM's kernels give each request one program, which walks the vocabulary three times. With few requests most of the GPU
waits. Here each row is cut into parts, and a second, tiny kernel puts them together. The values are vLLM's, but for
the order of summation in float32. Only the case of no further tokens (``logprobs: 0``) is taken over, for vLLM's
second model runner.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from vllm.triton_utils import tl, triton

from slipstream_vllm.versions import resolve

if TYPE_CHECKING:
    from vllm.v1.outputs import LogprobsTensors
    from vllm.v1.worker.gpu_worker import Worker

log = logging.getLogger("vllm.slipstream")
PART_LOGITS = 8192
"""Logits that one program reads."""
SAMPLER_MODULE = "vllm.v1.worker.gpu.sample.sampler"


@triton.jit  # type: ignore[untyped-decorator]
def _parts(  # type: ignore[no-untyped-def]
    highest_ptr, sum_ptr, above_ptr, logits_ptr, stride, ids_ptr, vocabulary, count, SIZE: tl.constexpr
):
    """For one part of a row: its highest logit, the sum of the exponentials below it, and how many reach the
    sampled one.
    """
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    start = logits_ptr + row * stride
    sampled = tl.load(start + tl.load(ids_ptr + row)).to(tl.float32)
    column = part * SIZE + tl.arange(0, SIZE)
    inside = column < vocabulary
    logits = tl.load(start + column, mask=inside, other=float("-inf")).to(tl.float32)
    highest = tl.max(logits, axis=0)
    base = tl.where(highest == float("-inf"), 0.0, highest)  # top-k or a grammar may mask a part as a whole
    total = tl.sum(tl.where(inside, tl.exp(logits - base), 0.0), axis=0)
    above = tl.sum(tl.where(inside & (logits >= sampled), 1, 0), axis=0)
    tl.store(highest_ptr + row * count + part, base)
    tl.store(sum_ptr + row * count + part, total)
    tl.store(above_ptr + row * count + part, above)


@triton.jit  # type: ignore[untyped-decorator]
def _whole(  # type: ignore[no-untyped-def]
    out_ptr, rank_ptr, highest_ptr, sum_ptr, above_ptr, logits_ptr, stride, ids_ptr, count, SIZE: tl.constexpr
):
    """For one row: the sampled token's log-probability and rank, from the row's parts."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, SIZE)
    inside = part < count
    total = tl.load(sum_ptr + row * count + part, mask=inside, other=0.0)
    bases = tl.load(highest_ptr + row * count + part, mask=inside, other=float("-inf"))
    highest = tl.max(tl.where(total > 0, bases, float("-inf")), axis=0)
    scaled = tl.where(total > 0, total * tl.exp(bases - highest), 0.0)
    sampled = tl.load(logits_ptr + row * stride + tl.load(ids_ptr + row)).to(tl.float32)
    tl.store(out_ptr + row, sampled - highest - tl.log(tl.sum(scaled, axis=0)))
    above = tl.load(above_ptr + row * count + part, mask=inside, other=0)
    tl.store(rank_ptr + row, tl.sum(above, axis=0).to(tl.int64))


def sampled_logprobs(logits_BV: torch.Tensor, ids_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probabilities, float32 (B, 1); ranks, int64 (B): tokens at least as likely) of the sampled ids."""
    batch, vocabulary = logits_BV.shape
    count = triton.cdiv(vocabulary, PART_LOGITS)
    highest_BP = logits_BV.new_empty((batch, count), dtype=torch.float32)
    sum_BP = torch.empty_like(highest_BP)
    above_BP = torch.empty_like(highest_BP, dtype=torch.int32)
    logprobs_B1 = logits_BV.new_empty((batch, 1), dtype=torch.float32)
    ranks_B = torch.empty(batch, dtype=torch.int64, device=logits_BV.device)
    if batch:
        stride = logits_BV.stride(0)
        _parts[(batch, count)](
            highest_BP, sum_BP, above_BP, logits_BV, stride, ids_B, vocabulary, count, SIZE=PART_LOGITS
        )
        size = triton.next_power_of_2(count)
        _whole[(batch,)](logprobs_B1, ranks_B, highest_BP, sum_BP, above_BP, logits_BV, stride, ids_B, count, SIZE=size)
    return logprobs_B1, ranks_B


def in_parts(original: Callable[..., LogprobsTensors]) -> Callable[..., LogprobsTensors]:
    """``compute_topk_logprobs`` as the sampler calls it."""

    @functools.wraps(original)
    def compute_topk_logprobs(
        logits: torch.Tensor,
        num_logprobs: int,
        sampled_token_ids: torch.Tensor,
        cu_num_logits: list[int] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> LogprobsTensors:
        more = kwargs.get("max_per_req_token_ids", 0)
        if num_logprobs or more or args or not logits.is_cuda or logits.stride(1) != 1:
            return original(logits, num_logprobs, sampled_token_ids, cu_num_logits, *args, **kwargs)
        logprobs_B1, ranks_B = sampled_logprobs(logits, sampled_token_ids)
        tensors = resolve("vllm.v1.outputs:LogprobsTensors")
        made: LogprobsTensors = tensors(
            logprob_token_ids=sampled_token_ids.unsqueeze(-1),
            logprobs=logprobs_B1,
            selected_token_ranks=ranks_B,
            cu_num_generated_tokens=cu_num_logits,
        )
        return made

    return compute_topk_logprobs


def used_once(original: Callable[[Worker], object]) -> Callable[[Worker], object]:
    """``Worker.compile_or_warm_up_model``. vLLM warms up with more than the sampled tokens, and the first call would
    wait for these kernels.
    """

    @functools.wraps(original)
    def warm_up(worker: Worker) -> object:
        try:
            model, device = worker.model_config, worker.device
            dtype = torch.float32 if "processed" in model.logprobs_mode else model.dtype
            if device.type == "cuda" and worker.use_v2_model_runner:
                logits_BV = torch.zeros((2, model.get_vocab_size()), dtype=dtype, device=device)
                sampled_logprobs(logits_BV, torch.zeros(2, dtype=torch.int64, device=device))
        except Exception as e:  # whatever it is, the first call meets it, too
            log.debug("slipstream plugin does not use its kernels ahead: %r", e)
        return original(worker)

    return warm_up


def install() -> None:
    """In a worker's process, or the engine core's where that is the worker. Raises ``ImportError`` or
    ``AttributeError`` where vLLM has no such sampler or worker.
    """
    sampler: Any = importlib.import_module(SAMPLER_MODULE)
    sampler.compute_topk_logprobs = in_parts(sampler.compute_topk_logprobs)
    worker = resolve("vllm.v1.worker.gpu_worker:Worker")
    worker.compile_or_warm_up_model = used_once(worker.compile_or_warm_up_model)
