"""The inbox task in one process, without engine and proxy: at a good learning rate it is learned, at ten times that nothing is wrecked."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support import MODEL
from tests.trainer.tiny import make_config, make_trainer, sample

from slipstream_trainer.guards import Pace
from slipstream_trainer.plan import make_plan
from slipstream_trainer.step import train


def turns(ids: list[int], sampled: list[int]) -> list[tuple[int, int]]:
    """(begin, end) of each run of sampled tokens."""
    edges = np.flatnonzero(np.diff([0, *sampled, 0])).tolist()
    assert len(ids) == len(sampled)
    return list(zip(edges[::2], edges[1::2], strict=True))


def batch(trainer, tasks) -> tuple[list, float]:
    """Eight episodes a task, sampled from the policy as it is; log-probabilities are the policy's own. → (samples, success)."""
    from rollout import rollout

    trainer.model.eval()
    with torch.no_grad():
        episodes = rollout(
            trainer.model.get_base_model(), trainer.processing_class, [t for t in tasks for _ in range(8)]
        )
    trainer.model.train()
    out = [
        sample(f"e{j}", e.ids[:a], e.ids[a:b], group=f"g{j // 8}", call=f"e{j}-{n}", number=n, reward=float(e.reward))
        for j, e in enumerate(episodes)
        for n, (a, b) in enumerate(turns(e.ids, e.sampled))
    ]
    work, at = trainer.start(make_plan(out)), 0
    with torch.no_grad():
        for micro in work.plan.micro:
            logps, _, token = trainer.forward(micro, work)
            work.now_T[token] = logps
    for s in out:
        s.logprobs_C = work.now_T[at : at + len(s.completion_C)].numpy().copy()
        at += len(s.completion_C)
    return out, float(np.mean([e.reward for e in episodes]))


@pytest.mark.learning
@pytest.mark.parametrize(("rate", "steps", "goal"), [(1e-3, 10, 0.85), (1e-2, 14, None)])
def test_the_inbox_task(tmp_path, rate: float, steps: int, goal: float | None) -> None:
    sys.path.insert(0, str(Path(MODEL).parent))
    from rollout import make_tasks

    config = make_config(MODEL, tmp_path, lora_rank=16, lora_alpha=64, learning_rate=rate, max_kl=0.1)
    trainer, pace, applied, success = make_trainer(config, warm=False), Pace(), 0, []
    torch.manual_seed(0)
    for n in range(steps):
        samples, found = batch(trainer, make_tasks("train", 16, 1000 + n))
        success.append(found)
        result = train(trainer, samples, pace, applied)
        applied += result.outcome == "step"
        print(f"{n}: success {found:.3f}, {result.outcome} {result.reason or ''}")
    end = float(np.mean(success[-2:]))
    assert end >= (success[0] if goal is None else goal), success
