"""The compiler's work before agents need it: rows of every length that a step may have are computed once, on made-up
tokens.

On a GPU the layers are compiled for each length (``layout.forest_width`` makes few), with and without gradients. In the
first steps that took half a minute, in which agents went on and their episodes became stale. Weights, optimiser and
random numbers stay as they were.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from slipstream_trainer.checkpoint import random_state, set_random_state
from slipstream_trainer.layout import forest_width
from slipstream_trainer.rows import Sample
from slipstream_trainer.step import plan_batch
from slipstream_trainer.work import Work

if TYPE_CHECKING:
    from slipstream_trainer.trainer import CapturedGRPOTrainer

log = logging.getLogger(__name__)
SCORED = 32
"""Sampled tokens of a made-up row: only the layers are compiled, not the head."""
PATIENCE = 90.0
"""Seconds after which what is left is compiled when it comes up."""
PATIENCE_SHARED = 20.0
"""The same where the engine gives way meanwhile (``engine.share``) and calls wait."""


def widths(budget: int) -> list[int]:
    """Every length that a micro-batch of at most ``budget`` tokens is padded to, shortest first."""
    found: list[int] = []
    while not found or found[-1] < budget:
        found.append(forest_width(found[-1] + 1 if found else 1, budget))
    return found


def row(tokens: int, vocab: int) -> Sample:
    """A made-up sample that computes ``tokens`` tokens."""
    ids = np.random.default_rng(tokens).integers(0, vocab, tokens + 1).astype(np.int32)
    scored = min(SCORED, tokens)
    prompt, completion = ids[:-scored], ids[-scored:]
    return Sample(
        "warm-up",
        "task",
        "warm-up",
        "warm-up",
        0,
        0,
        prompt,
        completion,
        np.zeros(scored, np.float32),
        0.0,
        advantage=1.0,
    )


def warm_up(trainer: CapturedGRPOTrainer, patience: float = PATIENCE) -> dict[int, float]:
    """Compile for every length, shortest first. → Length → seconds; nothing where layers are not compiled."""
    if not trainer.compiled or not trainer.forests:
        return {}
    began, took = time.monotonic(), {}
    state = random_state()
    for width in widths(trainer.config.trainer.token_budget):
        if trainer.world == 1 and time.monotonic() - began > patience:  # several processes must compute equally often
            log.info("rows of %d tokens and more are compiled when they come up", width)
            break
        start = time.monotonic()
        try:
            compute(trainer, width)
        except Exception as e:  # a step can do more than this: it tries again with less memory
            log.warning("rows of %d tokens could not be computed ahead, going on without: %s", width, e)
            trainer.model.zero_grad(set_to_none=True)
            break
        took[width] = time.monotonic() - start
    set_random_state(state)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(trainer.device)
    log.info("compiled for rows of %s", ", ".join(f"{w} tokens in {s:.0f} s" for w, s in took.items()))
    return took


def compute(trainer: CapturedGRPOTrainer, tokens: int) -> None:
    """Forward, backward and a forward without gradients, as a step has them. Leaves no gradients."""
    plan = plan_batch(trainer, [row(tokens, trainer.vocab)])
    trainer.checkpointing.choose(plan)
    work = Work.of(plan, trainer.device)
    for micro in plan.micro:
        logps, _, _ = trainer.forward(micro, work)
        torch.autograd.backward(logps.sum())
    trainer.model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for micro in plan.micro:
            trainer.forward(micro, work)
