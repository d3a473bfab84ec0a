"""The inbox task in one process, without engine and proxy: at a good learning rate it is learned, at ten times that nothing is wrecked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support import MODEL
from tests.support.tiny import make_config, make_trainer, sample

from slipstream_trainer.algorithm.learning_rate import StepPace
from slipstream_trainer.batch.layout import make_plan
from slipstream_trainer.step.step import train


def turns(ids: list[int], sampled: list[int]) -> list[tuple[int, int]]:
    """(begin, end) of each run of sampled tokens."""
    edges = np.flatnonzero(np.diff([0, *sampled, 0])).tolist()
    assert len(ids) == len(sampled)
    return list(zip(edges[::2], edges[1::2], strict=True))


def batch(trainer, tasks) -> tuple[list, float]:
    """Eight episodes a task, sampled from the policy as it is; log-probabilities are the policy's own. → (samples, success)."""
    from inbox.rollout import rollout

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
            work.policy_logprobs_T[token] = logps
    for s in out:
        s.logprobs_C = work.policy_logprobs_T[at : at + len(s.completion_C)].numpy().copy()
        at += len(s.completion_C)
    return out, float(np.mean([e.reward for e in episodes]))


def learn(tmp_path, *, steps: int, tasks: int, seed: int = 0, **settings) -> tuple[list[float], list[str]]:
    """→ Success of each batch of ``tasks`` × 8 episodes, and what became of it."""
    from inbox.rollout import make_tasks

    config = make_config(MODEL, tmp_path, **({"max_kl": 0.1} | settings))
    trainer, pace, applied, success, outcomes = make_trainer(config, warm=False), StepPace(), 0, [], []
    torch.manual_seed(seed)
    for n in range(steps):
        samples, found = batch(trainer, make_tasks("train", tasks, 1000 + n + 10_000 * seed))
        success.append(found)
        result = train(trainer, samples, pace, applied)
        outcomes.append(result.outcome)
        applied += result.outcome == "step"
        figures = {k: result.figures.get(k) for k in ("learning_rate", "kl", "kl_target")}
        print(f"{n}: success {found:.3f}, {result.outcome} {result.reason or ''} {figures}")
    return success, outcomes


@pytest.mark.learning
@pytest.mark.parametrize(("rank", "alpha"), [(16, 32.0), (8, 16.0), (1, 64.0)])
def test_the_inbox_task_at_the_default_learning_rate(tmp_path, rank: int, alpha: float) -> None:
    """About as fast as 1e-3, which was found by hand for rank 16 and alpha 64 (0.85 within ten steps)."""
    success, outcomes = learn(tmp_path, steps=12, tasks=16, learning_rate="auto", lora_rank=rank, lora_alpha=alpha)
    assert np.mean(success[-2:]) >= 0.85, success
    assert outcomes.count("undone") <= 1


@pytest.mark.learning
def test_small_batches_for_long_do_not_collapse(tmp_path) -> None:
    """Four groups a step, as the defaults begin with, for 120 batches."""
    success, _ = learn(tmp_path, steps=120, tasks=4, seed=2, learning_rate="auto", lora_rank=16)
    assert np.mean(success[15:25]) >= 0.8, success
    assert np.mean(success[-40:]) >= 0.9, success


@pytest.mark.learning
def test_a_rate_ten_times_too_high_wrecks_nothing(tmp_path) -> None:
    success, _ = learn(tmp_path, steps=14, tasks=16, lora_rank=16, lora_alpha=64, learning_rate=1e-2)
    assert np.mean(success[-2:]) >= success[0], success
