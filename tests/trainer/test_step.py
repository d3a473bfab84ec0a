from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.oracle import plain_logprobs
from tests.support.tiny import adapter_state, conversation, make_config, make_trainer

from slipstream_trainer.algorithm import guards
from slipstream_trainer.algorithm.learning_rate import TOO_FAR, TOO_SHORT, StepPace
from slipstream_trainer.step.step import train


@pytest.fixture
def make(tiny, tmp_path):
    return lambda **settings: make_trainer(make_config(tiny, tmp_path, **settings), warm=False)


def same(a, b) -> bool:
    return all(torch.equal(a[n], b[n]) for n in a)


def test_a_step_and_its_figures(make) -> None:
    trainer = make(learning_rate=1e-3, beta=0.01)
    before = adapter_state(trainer.model)
    samples = conversation(0, groups=3)
    samples[-1].trainable, samples[-1].reason = False, "top_k"
    result = train(trainer, samples, StepPace(), 0)
    assert result.outcome == "step"
    assert not same(before, adapter_state(trainer.model))
    f = result.figures
    for name in (
        "loss",
        "grad_norm",
        "ratio",
        "kl",
        "entropy",
        "clipped",
        "truncated",
        "logprob_gap",
        "padding",
        "memory_mib",
        "kl_base",
    ):
        assert isinstance(f[name], float), name
    assert (f["groups"], f["groups_dropped"], f["episodes"]) == (3, 0, 9)
    assert f["untrainable"] == {"top_k": 1}
    assert f["layout"] == "tree"
    assert 0 < f["saving_merged"] < f["saving"] < 1
    assert f["tokens"] == sum(len(s.completion_C) for s in samples[:-1])
    assert 0 < f["continuations"] <= 1


def test_a_batch_far_from_the_engine_is_not_stepped_on(make) -> None:
    trainer = make()
    before = adapter_state(trainer.model)
    samples = conversation(0)
    for s in samples:
        s.logprobs_C = s.logprobs_C - 30
    result = train(trainer, samples, StepPace(), 0)
    assert result.outcome == "skipped"
    assert "π_old" in result.reason
    assert same(before, adapter_state(trainer.model))
    assert all(p.grad is None for p in trainer.learner.trained)


def test_a_batch_of_another_policy_is_not_stepped_on(make) -> None:
    """The mean ratio may look well where tokens lie far apart in both directions; KL sees it."""
    trainer = make(max_engine_kl=0.5, max_ratio=1e6)
    before = adapter_state(trainer.model)
    result = train(trainer, conversation(0), StepPace(), 0)
    assert (result.outcome, "KL of the engine" in result.reason) == ("skipped", True)
    assert same(before, adapter_state(trainer.model))


def test_a_huge_gradient_is_not_stepped_on(make, monkeypatch) -> None:
    monkeypatch.setattr(guards, "GRADIENT_NORM_LIMIT", 1e-9)
    result = train(make(), conversation(0), StepPace(), 0)
    assert (result.outcome, "norm" in result.reason) == ("skipped", True)


def test_a_step_that_breaks_a_bound_is_undone(make) -> None:
    trainer, pace = make(learning_rate=10.0), StepPace()
    before = adapter_state(trainer.model)
    for n in range(2):
        result = train(trainer, conversation(n), pace, n)
        assert result.outcome == "undone"
        assert "KL" in result.reason
        assert same(before, adapter_state(trainer.model))
        assert not any(float(v["exp_avg"].abs().sum()) for v in trainer.optimizer.state.values())
    assert pace.scale == 0.5
    assert result.figures["learning_rate_scale"] == 0.5


def as_sampled_here(trainer, samples, off: dict[str, float]):
    """With the log-probabilities of the trainer itself; calls of ``off`` are this far from them."""
    with torch.no_grad():
        found = torch.split(plain_logprobs(trainer.model, samples), [len(s.completion_C) for s in samples])
    for s, logprobs_C in zip(samples, found, strict=True):
        s.logprobs_C = logprobs_C.numpy() - np.float32(off.get(s.call, 0.0))
    return samples


@pytest.mark.parametrize("inner", [1, 3])
def test_guarded_calls_are_counted_however_many_inner_steps_there_are(make, inner: int) -> None:
    samples = conversation(0)
    samples[0].logprobs_C = samples[0].logprobs_C - np.float32(9.0)
    result = train(make(max_engine_kl=1e9, max_ratio=1e3, inner_steps=inner), samples, StepPace(), 0)
    assert (result.outcome, result.figures["guarded"]) == ("step", 1)


def test_guarded_calls_do_not_decide_for_the_others_unless_they_are_most_of_the_batch(make) -> None:
    trainer, samples = make(max_engine_kl=1.0, max_ratio=4.0), conversation(0)
    result = train(trainer, as_sampled_here(trainer, samples, {samples[0].call: 20.0}), StepPace(), 0)
    assert (result.outcome, result.figures["guarded"]) == ("step", 1)
    assert result.figures["ratio"] == pytest.approx(1, abs=1e-3) and result.figures["kl_engine"] < 1e-3
    trainer, samples = make(max_engine_kl=1.0, max_ratio=4.0), conversation(0)
    result = train(trainer, as_sampled_here(trainer, samples, {s.call: -20.0 for s in samples[2:]}), StepPace(), 0)
    assert result.outcome == "skipped" and "% of the tokens are of calls whose mean π_old" in result.reason
    assert result.figures["guarded"] == len(samples) - 2


def test_the_kl_of_a_step_is_over_the_whole_vocabulary(make) -> None:
    """Against the plain forward of both policies at every scored place."""
    trainer, samples = make(learning_rate=3e-3, beta=0.0, max_kl=1e3), conversation(0, temperatures=False)

    def policy() -> torch.Tensor:
        with torch.no_grad():
            parts = []
            for s in samples:
                ids = torch.from_numpy(np.concatenate([s.prompt_P, s.completion_C]).astype(np.int64))[None]
                logits = trainer.model(input_ids=ids).logits[0, len(s.prompt_P) - 1 : -1]
                parts.append(torch.log_softmax(logits.double(), -1))
            return torch.cat(parts)

    old = policy()
    result = train(trainer, samples, StepPace(), 0)
    exact = float((old.exp() * (old - policy())).sum(-1).mean())
    assert result.figures["kl"] == pytest.approx(exact, rel=0.02)


def test_several_inner_steps_clip(make) -> None:
    trainer = make(inner_steps=4, loss="grpo", learning_rate=5e-3, max_kl=100.0)
    result = train(trainer, conversation(0), StepPace(), 0)
    assert result.outcome == "step"
    assert result.figures["kl"] > 0
    assert result.figures["clipped"] > 0
    assert {int(v["step"]) for v in trainer.optimizer.state.values()} == {4}


def test_nothing_to_train_on(make) -> None:
    trainer = make()
    samples = conversation(0)
    for s in samples:
        s.trainable, s.reason = False, "temperature"
    assert train(trainer, samples, StepPace(), 0).reason == "no call can be trained on"


def test_reward_that_favours_a_token_makes_it_likelier(make) -> None:
    """The loop learns: of two replies to one prompt, the rewarded one."""
    from tests.support.tiny import sample

    from slipstream_trainer.batch.layout import make_plan

    trainer = make(learning_rate=5e-3, max_kl=10.0, loss="cispo")
    prompt = [5, 6, 7, 8]

    def batch():
        out = [sample(f"e{i}", prompt, [20 + i % 2, 1], reward=float(i % 2)) for i in range(8)]
        work = trainer.start(make_plan(out, layout="per_call"))
        with torch.no_grad():
            for micro in work.plan.micro:
                lp, _, token = trainer.forward(micro, work)
                work.policy_logprobs_T[token] = lp
        for i, s in enumerate(out):
            s.logprobs_C = work.policy_logprobs_T[2 * i : 2 * i + 2].numpy().astype(np.float32)
        return out

    start = batch()[1].logprobs_C[0]
    for n in range(5):
        assert train(trainer, batch(), StepPace(), n).outcome == "step"
    assert batch()[1].logprobs_C[0] > start + 0.3


@pytest.mark.parametrize(("algorithm", "betas"), [("grpo", (0.8, 0.95)), ("sft", (0.9, 0.999))])
def test_adam_soon_forgets_the_gradients_of_an_earlier_policy(make, algorithm: str, betas: tuple[float, float]) -> None:
    optimizer = make(algorithm=algorithm).optimizer
    assert {group["betas"] for group in optimizer.param_groups} == {betas}


@pytest.mark.parametrize("scale", [4.0, 40.0])
def test_a_step_that_goes_too_far_is_shortened_to_its_target(make, scale: float) -> None:
    """A rate many times the fit's stands for a gradient that Adam has not seen before."""
    trainer = make(learning_rate="auto", target_kl=1e-4, max_kl=100.0, warmup_steps=0)
    pace = StepPace(scale=scale)
    figures = train(trainer, conversation(0, groups=8), pace, 0).figures
    assert TOO_SHORT / 2 * figures["kl_target"] <= figures["kl"] <= TOO_FAR * figures["kl_target"]
    assert figures["kl_full"] > TOO_FAR * figures["kl_target"]
    assert 0 < figures["shortened"] < 1
    assert pace.scale < scale, "the rate follows what the optimiser did, not what was left of it"


def test_a_rate_that_was_set_by_hand_is_not_shortened(make) -> None:
    trainer = make(learning_rate=0.05, target_kl=1e-6, max_kl=1e9, warmup_steps=0)
    figures = train(trainer, conversation(0), StepPace(), 0).figures
    assert figures["kl"] > TOO_FAR * figures["kl_target"]
    assert "shortened" not in figures
