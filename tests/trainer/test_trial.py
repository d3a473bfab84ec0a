from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.tiny import adapter_state, make_config, make_trainer

from slipstream.contract import AdapterTrial
from slipstream.errors import ConfigError
from slipstream_trainer.model.adapter import load_adapter
from slipstream_trainer.model.policy import load_policy
from slipstream_trainer.run.trial import begin_trial
from slipstream_trainer.versions.learner import LearnerRecord
from slipstream_trainer.versions.shipping import AdapterShipping
from slipstream_trainer.versions.turns import TrainerTurns


def proxy(config, answer: AdapterTrial, seen: list):
    """A publisher whose proxy looks at the folder while it is there."""

    def ask(wanted) -> AdapterTrial:
        model, _ = load_policy(config)
        load_adapter(model, config.adapters_dir / wanted.path)
        seen.append(adapter_state(model))
        return answer

    client: Any = SimpleNamespace(try_adapter=ask)
    shipping = AdapterShipping(config, client, lambda f: f(), threading.Event())
    return SimpleNamespace(shipping=shipping, stop=shipping.stop, learner=SimpleNamespace(record=LearnerRecord()))


@pytest.mark.parametrize("tried", [True, False])
def test_the_trial_is_no_zero_adapter_and_leaves_nothing_behind(tiny, tmp_path, tried: bool) -> None:
    config = make_config(tiny, tmp_path)
    trainer, seen = make_trainer(config, warm=False), []
    before = adapter_state(trainer.model)
    seat = TrainerTurns(trainer).seat(config)
    assert begin_trial(config, seat, proxy(config, AdapterTrial(tried=tried), seen)).result() is tried
    assert all(float(w.abs().max()) > 0 for w in seen[0].values())
    assert all(torch.equal(w, before[n]) for n, w in adapter_state(trainer.model).items())
    assert list(config.adapters_dir.iterdir()) == []


def test_an_engine_that_starts_is_waited_for_until_a_step_is_due(tiny, tmp_path) -> None:
    config = make_config(tiny, tmp_path)
    seat, answers = TrainerTurns(make_trainer(config, warm=False)).seat(config), [False, False, True]
    asked: list[str] = []

    def ask(wanted) -> AdapterTrial:
        asked.append(wanted.path)
        return AdapterTrial(tried=answers.pop(0))

    client: Any = SimpleNamespace(try_adapter=ask)
    shipping = AdapterShipping(config, client, lambda f: f(), threading.Event())
    publisher: Any = SimpleNamespace(
        shipping=shipping, stop=shipping.stop, learner=SimpleNamespace(record=LearnerRecord())
    )
    due = threading.Event()
    assert begin_trial(config, seat, publisher, due).result(timeout=30) is True
    assert len(asked) == 3 and len({*asked}) == 1, "its files are written once"
    answers[:] = [False] * 1000
    trial = begin_trial(config, seat, publisher, due)
    due.set()
    assert trial.result(timeout=30) is False, "a batch is waiting"
    assert list(config.adapters_dir.iterdir()) == []


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("expected target modules in {'q_proj'} but received ['m.0.up_proj', 'm.0.gate_proj']",
         '"down_proj", "k_proj", "o_proj", "q_proj", "v_proj"'),
        ("it has no effect", "to linear layers"),
    ],
)  # fmt: skip
def test_what_the_engine_refuses_ends_the_trainer_with_the_line_to_set(tiny, tmp_path, reason, fix) -> None:
    config = make_config(tiny, tmp_path)
    trainer = make_trainer(config)
    with pytest.raises(ConfigError, match="can be served") as e:
        seat = TrainerTurns(trainer).seat(config)
        begin_trial(config, seat, proxy(config, AdapterTrial(tried=True, reason=reason), [])).result()
    assert fix in str(e.value)
    assert reason in str(e.value)
