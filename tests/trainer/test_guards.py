from __future__ import annotations

import math

import pytest
import torch

from slipstream.settings import TrainerConfig
from slipstream_trainer.algorithm.guards import after_step, before_step, engine_kl, k3, mean_ratio
from slipstream_trainer.model.weights import Snapshot

T = TrainerConfig()
GOOD = {"loss": 0.1, "ratio": 1.0, "grad_norm": 1.0}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"loss": float("nan")}, "loss"), ({"loss": math.inf}, "loss"), ({"grad_norm": float("nan")}, "norm"), ({"grad_norm": 1001.0}, "norm"),
        ({"ratio": 5.0}, "π_old"), ({"ratio": 0.2}, "π_old"), ({"ratio": float("nan")}, "π_old"), ({"kl": 1.1}, "engine"),
        ({"kl": float("nan")}, "engine"),
    ],
)  # fmt: skip
def test_before_a_step(change, word: str) -> None:
    assert before_step(T, **GOOD) is None
    assert word in before_step(T, **(GOOD | change))


def test_kl_of_the_engine_to_the_trainer() -> None:
    """On tokens sampled from one distribution it estimates its KL to another; one token does not decide alone."""
    p, q = torch.tensor([0.7, 0.2, 0.1]).log(), torch.tensor([0.5, 0.3, 0.2]).log()
    tokens = torch.multinomial(p.exp(), 40_000, replacement=True, generator=torch.Generator().manual_seed(1))
    exact = float((p.exp() * (p - q)).sum())
    assert engine_kl((q - p)[tokens]) == pytest.approx(exact, abs=0.01)
    assert engine_kl(torch.zeros(5)) == engine_kl(torch.zeros(0)) == 0.0
    assert engine_kl(torch.tensor([50.0] + [0.0] * 99)) == pytest.approx(1.0)


def test_after_a_step() -> None:
    assert after_step(T, kl=0.05, entropy=0.5) is None
    assert "KL" in after_step(T, kl=0.15, entropy=0.5)
    assert "KL" in after_step(T, kl=float("nan"), entropy=0.5)
    assert "entropy" in after_step(T, kl=0.05, entropy=float("nan"))


def test_one_token_does_not_decide_the_mean_ratio() -> None:
    assert mean_ratio(torch.tensor([0.0] * 99 + [50.0])) == pytest.approx(1.99)
    assert mean_ratio(torch.zeros(0)) == 1.0


def test_k3_is_the_kl_of_samples() -> None:
    torch.manual_seed(0)
    p, q = torch.softmax(torch.randn(6), -1), torch.softmax(torch.randn(6), -1)
    exact = (p * (p / q).log()).sum()
    assert float((p * k3(p.log(), q.log())).sum()) == pytest.approx(float(exact), rel=1e-4)
    assert (k3(torch.randn(50), torch.randn(50)) >= 0).all()


def test_a_snapshot_brings_everything_back() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    step()
    before = Snapshot.take(model, optimizer)
    kept = model.weight.detach().clone()
    step()
    after = model.weight.detach().clone()
    before.restore(model, optimizer)
    assert torch.equal(model.weight, kept)
    model.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    model.weight.grad, model.bias.grad = (
        model.weight.grad * 2,
        model.bias.grad * 2,
    )  # as two backward passes had left them
    optimizer.step()
    assert torch.allclose(model.weight, after, atol=1e-6)


def test_a_shortened_step_lies_on_the_way_back() -> None:
    model = torch.nn.Linear(3, 2)
    before = Snapshot.take(model, torch.optim.SGD(model.parameters(), lr=1.0))
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    with torch.no_grad():
        for p in model.parameters():
            p.add_(4.0)
    before.resize(model, 0.25)
    for n, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), start[n] + 1.0)
