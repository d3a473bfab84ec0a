from __future__ import annotations

import pytest
import torch
from tests.support.oracle import filtered_logprob
from tests.support.tiny import make_config, make_trainer

from slipstream_trainer.model import compute
from slipstream_trainer.model.compute import ScoredPositions
from slipstream_trainer.model.weights import Snapshot


@pytest.fixture(scope="module")
def trainer(tiny, tmp_path_factory):
    return make_trainer(make_config(tiny, tmp_path_factory.mktemp("head")))


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("temperatures", [False, True])
def test_scored_positions_as_the_full_logits_have_them(trainer, monkeypatch, small: bool, temperatures: bool) -> None:
    if not small:
        monkeypatch.setattr(compute, "DIRECT_LIMIT", 0)
    torch.manual_seed(0)
    ids = torch.randint(3, 60, (2, 9))
    source, target = torch.tensor([3, 8, 9, 17]), torch.tensor([5, 6, 7, 8])
    cold = torch.tensor([1.0, 0.5, 2.0, 1.3]) if temperatures else None
    logps, entropy = trainer.model(input_ids=ids, score=ScoredPositions(source, target, cold))
    logits = trainer.model(input_ids=ids).logits.reshape(18, -1)[source] * (1.0 if cold is None else cold[:, None])
    full = torch.log_softmax(logits, -1)
    assert torch.allclose(logps, full.gather(1, target[:, None])[:, 0], atol=1e-5)
    assert torch.allclose(entropy, -(full.exp() * full).sum(-1), atol=1e-4)
    assert logps.requires_grad
    assert not entropy.requires_grad


@pytest.mark.parametrize("temperatures", [False, True])
def test_two_policies_are_compared_over_the_whole_vocabulary(trainer, monkeypatch, temperatures: bool) -> None:
    monkeypatch.setattr(compute, "PIECE_ELEMENTS", 1)  # place by place
    torch.manual_seed(0)
    ids, places = torch.randint(3, 60, (1, 9)), torch.tensor([0, 2, 3])
    source, target = torch.tensor([1, 4, 6, 7]), torch.tensor([5, 6, 7, 8])
    cold = torch.tensor([1.0, 0.5, 2.0, 1.3]) if temperatures else None

    def full() -> torch.Tensor:
        logits = trainer.model(input_ids=ids).logits[0, source] * (1.0 if cold is None else cold[:, None])
        return torch.log_softmax(logits, -1)[places]

    kept = Snapshot.take(trainer.model, trainer.optimizer)
    before = ScoredPositions(source, target, cold, places)
    with torch.no_grad():
        trainer.model(input_ids=ids, score=before)
        assert before.kl_P is None
        old = full()
        for p in trainer.learner.trained:
            p.add_(0.1 * torch.randn_like(p))
        after = ScoredPositions(source, target, cold, places, before.hidden_PH)
        trainer.model(input_ids=ids, score=after)
        expected = (old.exp() * (old - full())).sum(-1)
    kept.restore(trainer.model, trainer.optimizer)
    assert (expected > 1e-3).all()
    assert torch.allclose(after.kl_P, expected, rtol=1e-3)


def test_without_score_the_forward_is_what_it_was(trainer) -> None:
    assert trainer.model(input_ids=torch.tensor([[3, 4]])).logits.shape == (1, 2, trainer.learner.vocab)


@pytest.mark.parametrize("small", [True, False])
def test_what_a_filter_cuts_off_is_cut_off_here_as_well(trainer, monkeypatch, small: bool) -> None:
    if not small:
        monkeypatch.setattr(compute, "DIRECT_LIMIT", 0)
    torch.manual_seed(1)
    filters = [
        (0, 0, 1),
        (0.3, 0, 1),
        (0, 3, 1),
        (0, 0, 0.4),
        (0.1, 20, 0.7),
        (0, 1, 1),
        (0, 0, 0.01),
        (0.9, 500, 0.999),
    ]
    ids = torch.randint(3, 60, (1, 40))
    source = torch.arange(32)
    cut = torch.tensor([filters[i % len(filters)] for i in range(32)])
    cold = torch.linspace(0.5, 8.0, 32)
    logits = (trainer.model(input_ids=ids).logits[0, source] * cold[:, None]).detach()
    # every third token is one that the filter cuts: the sampler drew it all the same
    drawn = (
        logits.masked_fill(~compute.kept(logits, cut, logits.argmax(-1)), float("-inf"))
        .softmax(-1)
        .multinomial(1)[:, 0]
    )
    target = torch.where(source % 3 == 0, logits.argmin(-1), drawn)
    found, entropy = trainer.model(input_ids=ids, score=ScoredPositions(source, target, cold, filter_S3=cut))
    for i, (min_p, top_k, top_p) in enumerate(cut.double().tolist()):
        wanted = filtered_logprob(logits[i].double().tolist(), int(target[i]), min_p, int(top_k), top_p)
        assert float(found[i]) == pytest.approx(wanted, abs=2e-4), (i, filters[i % len(filters)])
    assert torch.isfinite(entropy).all() and found[5].item() == 0.0, "nothing else is left"
    (gradient,) = torch.autograd.grad(found.sum(), [trainer.learner.trained[0]])
    assert torch.isfinite(gradient).all() and gradient.abs().sum() > 0


@pytest.mark.parametrize("target", range(4))
def test_of_tokens_that_tie_at_the_edge_exactly_k_are_kept_and_the_sampled_one_among_them(target: int) -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 1.0, 0.0]])
    for rule, count in (((0, 2, 1), 2), ((0, 3, 0.99), 3), ((0, 0, 1), 5), ((0.5, 2, 1), 1 + (target != 1))):
        found = compute.kept(logits, torch.tensor([rule]), torch.tensor([target]))[0]
        assert found[target] and found[1] and int(found.sum()) == count, rule
