from __future__ import annotations

import torch
from tests.support.tiny import conversation

from slipstream_trainer.batch.layout import make_plan
from slipstream_trainer.batch.work import Work


def test_a_plan_on_the_device() -> None:
    plan = make_plan(conversation(0))
    work = Work.of(plan, torch.device("cpu"))
    assert len(work.behavior_logprobs_T) == len(work.inverse_temperature_T) == plan.scored.tokens
    assert set(work.inverse_temperature_T.tolist()) == {1.0, *(1 / torch.tensor([0.7, 1.3])).tolist()}
    assert Work.of(make_plan(conversation(0, temperatures=False)), torch.device("cpu")).inverse_temperature_T is None
    assert work.fresh
