from __future__ import annotations

import pytest
import torch
from tests.support.tiny import make_config, make_trainer

from slipstream_trainer import head
from slipstream_trainer.head import ScoredPositions


@pytest.fixture(scope="module")
def trainer(tiny, tmp_path_factory):
    return make_trainer(make_config(tiny, tmp_path_factory.mktemp("head")))


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("temperatures", [False, True])
def test_scored_positions_as_the_full_logits_have_them(trainer, monkeypatch, small: bool, temperatures: bool) -> None:
    if not small:
        monkeypatch.setattr(head, "DIRECT_LIMIT", 0)
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


def test_without_score_the_forward_is_what_it_was(trainer) -> None:
    assert trainer.model(input_ids=torch.tensor([[3, 4]])).logits.shape == (1, 2, trainer.vocab)
