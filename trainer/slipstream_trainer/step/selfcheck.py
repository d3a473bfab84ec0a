"""Before the first step: does this model compute a packed row as it computes each sequence alone?

Packing leans on the attention implementation: on its mask, or on position ids alone. A model class or a library
that does not heed them would let sequences see each other, and nothing else would say so.
"""

from __future__ import annotations

import logging

import numpy as np
import torch

from slipstream_trainer.batch.layout import BLOCK_TOKENS, Layout, make_plan
from slipstream_trainer.batch.rows import Sample
from slipstream_trainer.batch.work import Work
from slipstream_trainer.model.torch_learner import TorchLearner

log = logging.getLogger(__name__)
ROUNDING_NATS = {torch.float32: 2e-3, torch.bfloat16: 0.15, torch.float16: 0.05}
"""Mean difference of log-probabilities, nats a token, that the order of additions explains."""
SCORED_TOKENS = 32
"""Sampled tokens of a filler: it is the layers that count, not the head."""
MIN_ROW_TOKENS = 128
"""At least as many tokens as ``two_and_a_half`` has."""


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


def filler(tokens: int, vocab: int, sampled: int = SCORED_TOKENS) -> Sample:
    """A made-up sample that computes ``tokens`` tokens, of which a few are sampled."""
    ids = np.random.default_rng(tokens).integers(0, vocab, tokens + 1).astype(np.int32)
    scored = min(sampled, tokens)
    zeros = np.zeros(scored, np.float32)
    return Sample("check", "task", "filler", "filler", 0, 0, ids[:-scored], ids[-scored:], zeros, 0.0, advantage=1.0)


def logprobs(learner: TorchLearner, layout: Layout, *, forest: bool, width: int = 0) -> torch.Tensor:
    """Log-probabilities of the sampled tokens, in the samples' order. ``width``: of the row, filled up behind them."""
    multiple = 1 if learner.device.type == "cpu" else BLOCK_TOKENS
    more = [filler(width - MIN_ROW_TOKENS, learner.vocab)] if width else []
    budget = learner.config.trainer.token_budget if width else 16_384
    plan = make_plan(
        two_and_a_half(learner.vocab) + more,
        layout=layout,
        budget=budget,
        multiple=multiple,
        forest=forest,
        compiled=[width] if width else [],
    )
    work = Work.of(plan, learner.device)
    with torch.no_grad():
        for micro in work.plan.micro:
            logps, _, token, _ = learner.logprobs(micro, work)
            work.policy_logprobs_T[token] = logps
    return work.policy_logprobs_T


def bound(learner: TorchLearner) -> float:
    kind = torch.bfloat16 if learner.bf16 else learner.dtype
    return ROUNDING_NATS.get(kind, ROUNDING_NATS[torch.bfloat16])


def check_packing(learner: TorchLearner) -> dict[str, float]:
    """Switch off, with a warning, what computes wrongly. → Difference by what was tried (``tree``, ``packed``)."""
    alone, most = logprobs(learner, "per_call", forest=False), bound(learner)
    found: dict[str, float] = {}

    def differs(name: str, layout: Layout) -> bool:
        found[name] = float((logprobs(learner, layout, forest=learner.forests) - alone).abs().mean())
        return not found[name] <= most  # not a number differs, too

    if learner.trees and differs("tree", "tree"):
        log.warning(
            "prefix trees are not computed as sequences alone are (%.3g nats a token apart): rows of one sequence each",
            found["tree"],
        )
        learner.trees = False
    if learner.forests and differs("packed", "merged"):
        log.warning(
            "packed rows are not computed as sequences alone are (%.3g nats a token apart): not packed", found["packed"]
        )
        learner.forests = False
    return found


def computes_alike(learner: TorchLearner, width: int) -> bool:
    """Do rows of this length, which are compiled now, compute what uncompiled sequences alone do?"""
    learner.checkpointing.forget()  # layers keep something else from now on
    alone = logprobs(learner, "per_call", forest=False)
    layout: Layout = "tree" if learner.trees else "merged"
    packed = logprobs(learner, layout, forest=True, width=width)[: len(alone)]
    differ = float((packed - alone).abs().mean())
    if not differ <= bound(learner):
        log.warning("compiled rows of %d tokens are %.3g nats a token off, and stay uncompiled", width, differ)
        return False
    return True
