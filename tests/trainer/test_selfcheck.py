"""A model that does not compute packed rows as sequences alone is found out before the first step."""

from __future__ import annotations

import torch
from tests.support.tiny import conversation, make_config, make_trainer

from slipstream_trainer.algorithm.learning_rate import StepPace
from slipstream_trainer.step.selfcheck import check_packing, computes_alike
from slipstream_trainer.step.step import train


def test_packed_equals_alone(tiny, tmp_path) -> None:
    trainer = make_trainer(make_config(tiny, tmp_path))
    state = torch.get_rng_state()
    found = check_packing(trainer.learner)
    assert found["tree"] < 1e-4 and trainer.learner.trees
    assert computes_alike(trainer.learner, 1024)
    assert torch.equal(state, torch.get_rng_state()), "it draws nothing from the generators that training goes on with"
    assert all(p.grad is None for p in trainer.learner.trained)


def test_a_model_that_ignores_the_mask_gets_plain_rows(tiny, tmp_path, caplog) -> None:
    trainer = make_trainer(make_config(tiny, tmp_path, max_kl=100.0))
    base = trainer.model.get_base_model()
    inner = base.model.forward

    def deaf(*args, attention_mask=None, **kwargs):
        return inner(*args, **kwargs)

    base.model.forward = deaf
    assert not computes_alike(trainer.learner, 1024)
    assert "stay uncompiled" in caplog.text
    found = check_packing(trainer.learner)
    assert found["tree"] > 0.01 and not trainer.learner.trees
    assert "rows of one sequence each" in caplog.text
    result = train(trainer, conversation(0), StepPace(), 0)
    assert (result.outcome, result.figures["layout"]) == ("step", "merged")
