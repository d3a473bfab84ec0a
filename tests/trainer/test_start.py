from __future__ import annotations

import pytest
from tests.support.control import FakeControl, serve
from tests.support.tiny import make_config

from slipstream.client import Client
from slipstream.errors import ConfigError
from slipstream_trainer.run.start import start_trainer
from slipstream_trainer.versions.learner import worker_name


def test_a_trainer_that_shares_takes_its_first_turn_to_load(tiny, tmp_path) -> None:
    config = make_config(tiny, tmp_path)
    config.engine.share = True
    with serve(FakeControl()) as control, Client(control.url) as client:
        _, gpu_lease = start_trainer(config, client)
        assert control.holds == ["hold", "release"] and gpu_lease.shared
        assert gpu_lease.worker == worker_name(config) == "trainer-tiny"
        start_trainer(config, None)  # offline nobody is asked
        assert len(control.holds) == 2


@pytest.mark.parametrize("backend", ["pathlib:Path", "math:tau"])
def test_a_backend_that_is_no_learner_is_refused(tmp_path, backend: str) -> None:
    config = make_config(tmp_path / "nothing", tmp_path, backend=backend)
    with pytest.raises(ConfigError, match=f"trainer.backend = '{backend}' is no subclass of"):
        start_trainer(config, None)


def test_what_vllm_would_refuse_is_refused_before_anything_is_loaded(tmp_path) -> None:
    config = make_config(tmp_path / "nothing", tmp_path, lora_rank=8)
    config.trainer.lora_rank = 700
    with pytest.raises(ConfigError, match="rank"):
        start_trainer(config, None)
