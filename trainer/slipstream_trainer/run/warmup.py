"""The compiler's work apart from the steps, on made-up tokens: rows of one length in a process of its own
(``compute.py``), or of every length at the start where the model's class has one attention alone.

The process has one layer of the model: equal layers share their code, so what it leaves in the compiler's cache serves
all. It needs the memory of that layer and of the embeddings.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from slipstream.config import Config, load_config
from slipstream_trainer.batch.layout import forest_width
from slipstream_trainer.batch.work import Work
from slipstream_trainer.model.compute import DIRECT_LIMIT, LONG_ROW_TOKENS
from slipstream_trainer.model.graphs import CAPTURE_AFTER
from slipstream_trainer.model.torch_learner import TorchLearner
from slipstream_trainer.step.selfcheck import filler
from slipstream_trainer.step.step import again
from slipstream_trainer.versions.checkpoint import random_state, set_random_state

if TYPE_CHECKING:
    from slipstream_trainer.batch.rows import Sample
    from slipstream_trainer.step.trainer import CapturedGRPOTrainer

log = logging.getLogger(__name__)
WARMUP_TOKENS, MAX_WARMUP_RUNS = 64, 64
"""Sampled tokens of a made-up run, and such runs at most, of which one use of all kernels is made."""
SMALL_BATCH_RUNS = (64, 48, 32, 16, 8)
"""Runs of the made-up steps of a model whose passes are captured as graphs; other models' step has the fewest."""


def widths(budget: int) -> list[int]:
    """Every length that a micro-batch of at most ``budget`` tokens is padded to, shortest first."""
    found: list[int] = []
    while not found or found[-1] < budget:
        found.append(forest_width(found[-1] + 1 if found else 1, budget))
    return found


def here_of(trainer: CapturedGRPOTrainer) -> TorchLearner:
    """Only what computes in this process is warmed up."""
    assert isinstance(trainer.learner, TorchLearner)
    return trainer.learner


def warm_up(trainer: CapturedGRPOTrainer) -> dict[int, float]:
    """Compile for every length but the longest, shortest first. → Length → seconds; nothing where layers are not
    compiled, or late.

    What is not compiled has kernels that a GPU loads, and some that are made, at their first use: these are used once.
    Weights, optimiser and random numbers stay as they were.
    """
    learner, state = here_of(trainer), random_state()
    if learner.compiler is None or learner.compiler.late or not learner.forests:
        if learner.device.type == "cuda" and learner.world == 1:
            _use_once(trainer)
            set_random_state(state)
        return {}
    took = {}
    for width in widths(min(LONG_ROW_TOKENS, learner.config.trainer.token_budget)):
        start = time.monotonic()
        try:
            compute(learner, filler(width, learner.vocab))
        except Exception as e:  # a step can do more than this: it tries again with less memory
            log.warning("rows of %d tokens could not be computed ahead, going on without: %s", width, e)
            learner.model.zero_grad(set_to_none=True)
            break
        took[width] = time.monotonic() - start
    set_random_state(state)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(learner.device)
    log.info("compiled for rows of %s", ", ".join(f"{w} tokens in {s:.0f} s" for w, s in took.items()))
    return took


def _use_once(trainer: CapturedGRPOTrainer) -> None:
    """With as many sampled tokens as take the kernel for many; and whole steps of small batches, since agents would
    make a thousand runs while the first real step loads what it needs.
    """
    learner = here_of(trainer)
    before = learner.save()
    many = 2 + DIRECT_LIMIT // learner.vocab // WARMUP_TOKENS
    runs = [filler(2 * WARMUP_TOKENS + i, learner.vocab, WARMUP_TOKENS) for i in range(min(many, MAX_WARMUP_RUNS))]
    try:
        compute(learner, *runs)
        if learner.graphs is None:
            _step(trainer, SMALL_BATCH_RUNS[-1])
            return
        learner.graphs.capture_after = 0
        for count in SMALL_BATCH_RUNS:  # the largest first: all graphs share its memory
            _step(trainer, count)
    except Exception as e:  # a step can do more than this: it tries again with less memory
        log.warning("no step was tried ahead, going on without: %s", e)
    finally:
        if learner.graphs is not None:
            learner.graphs.capture_after = CAPTURE_AFTER
        learner.restore(before)
        learner.zero_grads()


def _step(trainer: CapturedGRPOTrainer, count: int) -> None:
    """All that a step on ``count`` short runs computes. Changes weights and the optimiser's state."""
    learner = trainer.learner
    runs = (filler(2 * WARMUP_TOKENS - 1 - i % WARMUP_TOKENS, learner.vocab, WARMUP_TOKENS // 2) for i in range(count))
    plan = learner.plan(list(runs))
    learner.prepare(plan)
    work = trainer.start(plan)
    trainer.backward(work)
    learner.clip()
    learner.step(0.0)
    again(trainer, work)


def compute(learner: TorchLearner, *samples: Sample) -> None:
    """Forward, backward and a forward without gradients, as a step has them. Leaves no gradients."""
    plan = learner.plan(samples)
    learner.prepare(plan)
    work = Work.of(plan, learner.device)
    for micro in plan.micro:
        logps, *_ = learner.logprobs(micro, work)
        torch.autograd.backward(logps.sum())
    learner.model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for micro in plan.micro:
            learner.logprobs(micro, work)


def one_layer(config: Config, folder: Path) -> CapturedGRPOTrainer:
    """A trainer of the model's first layer alone. It writes into ``folder``."""
    from slipstream_trainer.model.policy import load_policy
    from slipstream_trainer.step.trainer import CapturedGRPOTrainer

    model, tokenizer = load_policy(config, layers=1)
    return CapturedGRPOTrainer(model, tokenizer, config, folder)


def main() -> None:
    """Compile one length: ``{"config": …, "width": …}`` on standard input. Ends with a traceback where it fails."""
    logging.basicConfig(level=logging.INFO)
    order = json.load(sys.stdin)
    os.nice(10)  # agents and engine come first
    chosen = order["config"]
    kept = {"mode": "merged" if chosen["trainer"]["mode"] == "merged" else "tree", "init_adapter": None}
    chosen["trainer"] |= kept | {"report_to": [], "checkpointing": "off"}
    with tempfile.TemporaryDirectory() as folder:
        learner = here_of(one_layer(load_config(None, env={}, base=chosen), Path(folder)))
        if learner.compiler is not None:
            learner.compiler.late = False
            learner.compiler.ready.add(order["width"])
        compute(learner, filler(order["width"], learner.vocab))


if __name__ == "__main__":
    main()
