"""Before the first step: does this model compute a packed row as it computes each sequence alone?

Packing leans on the attention implementation: on its mask, or on position ids alone. A model class or a library
that does not heed them would let sequences see each other, and nothing else would say so.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import torch

from slipstream_trainer.layout import Layout
from slipstream_trainer.plan import make_plan
from slipstream_trainer.rows import Sample
from slipstream_trainer.work import Work

if TYPE_CHECKING:
    from slipstream_trainer.trainer import CapturedGRPOTrainer

log = logging.getLogger(__name__)
ROUNDING = {torch.float32: 2e-3, torch.bfloat16: 0.15, torch.float16: 0.05}
"""Mean difference of log-probabilities, nats a token, that the order of additions explains."""


def two_and_a_half(vocab: int) -> list[Sample]:
    """Two random sequences that begin alike, and one that does not."""
    random = np.random.default_rng(0)

    def some(n: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return random.integers(0, vocab, n).astype(np.int32)

    root = some(24)
    prompts = [np.concatenate([root, some(7)]), np.concatenate([root, some(11)]), some(19)]
    return [
        Sample("check", "task", f"e{i}", f"c{i}", 0, 0, p, said := some(12), np.zeros(len(said), np.float32), float(i))
        for i, p in enumerate(prompts)
    ]


def logprobs(trainer: CapturedGRPOTrainer, layout: Layout, *, forest: bool) -> torch.Tensor:
    """Log-probabilities of the sampled tokens, in the samples' order."""
    multiple = 1 if trainer.device.type == "cpu" else 128
    plan = make_plan(two_and_a_half(trainer.vocab), layout=layout, multiple=multiple, forest=forest)
    work = Work.of(plan, trainer.device)
    with torch.no_grad():
        for micro in work.plan.micro:
            logps, _, token = trainer.forward(micro, work)
            work.policy_logprobs_T[token] = logps
    return work.policy_logprobs_T


def bound(trainer: CapturedGRPOTrainer) -> float:
    kind = torch.bfloat16 if trainer.args.bf16 else trainer.base.dtype
    return ROUNDING.get(kind, ROUNDING[torch.bfloat16])


def check_packing(trainer: CapturedGRPOTrainer) -> dict[str, float]:
    """Switch off, with a warning, what computes wrongly. → Difference by what was tried (``tree``, ``packed``)."""
    alone, most = logprobs(trainer, "per_call", forest=False), bound(trainer)
    found: dict[str, float] = {}

    def differs(name: str, layout: Layout) -> bool:
        found[name] = float((logprobs(trainer, layout, forest=trainer.forests) - alone).abs().mean())
        return not found[name] <= most  # not a number differs, too

    if trainer.trees and differs("tree", "tree"):
        log.warning(
            "prefix trees are not computed as sequences alone are (%.3g nats a token apart): rows of one sequence each",
            found["tree"],
        )
        trainer.trees = False
    if trainer.forests and differs("packed", "merged"):
        log.warning(
            "packed rows are not computed as sequences alone are (%.3g nats a token apart): not packed", found["packed"]
        )
        trainer.forests = False
    return found
