from __future__ import annotations

import importlib.util

import pytest
from tests.support.control import FakeControl, serve
from tests.support.tiny import conversation, make_config, make_trainer, table

from slipstream.client import Client
from slipstream.errors import ConfigError
from slipstream_trainer.reporting import check_report_to
from slipstream_trainer.worker import Worker

BOARD = any(importlib.util.find_spec(name) for name in ("tensorboard", "tensorboardX"))


def test_loggers_that_are_not_there_are_refused_early(tiny, tmp_path, monkeypatch) -> None:
    with pytest.raises(ConfigError, match="known are wandb"):
        check_report_to(make_config(tiny, tmp_path, report_to=["wandbb"]))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install mlflow"):
        check_report_to(make_config(tiny, tmp_path, report_to=["mlflow"]))
    check_report_to(make_config(tiny, tmp_path))


class Listener:
    """What W&B's callback is to TRL: told of the beginning, of each log and of the end."""

    def __new__(cls):
        from transformers import TrainerCallback

        class Told(TrainerCallback):
            def __init__(self) -> None:
                self.heard = []

            def on_train_begin(self, args, state, control, **kwargs):
                self.heard.append(("begin", kwargs["model"] is not None))

            def on_log(self, args, state, control, logs=None, **kwargs):
                self.heard.append((state.global_step, logs))

            def on_train_end(self, args, state, control, **kwargs):
                self.heard.append(("end", True))

        return Told()


def test_a_callback_of_trl_hears_of_every_step_between_begin_and_end(tiny, tmp_path) -> None:
    config = make_config(tiny, tmp_path, max_steps=2, max_kl=1e6)
    with serve(FakeControl()) as control:
        for i in range(2):
            control.add(f"b{i}", table(conversation(i)))
        trainer = make_trainer(config, warm=False)
        told = Listener()
        trainer.add_callback(told)
        worker = Worker(config, Client(control.url), trainer)
        worker.reporter.names = ["told"]
        assert worker.run() == 0
    assert [n for n, _ in told.heard] == ["begin", 1, 2, "end"]  # type: ignore[attr-defined]
    logs = told.heard[1][1]  # type: ignore[attr-defined]
    assert {"loss", "reward", "advantage_std", "kl", "entropy", "clipped", "truncated", "staleness", "logprob_gap", "tokens_per_second",
            "padding", "saving", "memory_mib"} <= set(logs)  # fmt: skip
    assert all(isinstance(logs[k], float) for k in ("loss", "kl", "entropy"))


def test_a_logger_that_fails_costs_no_step(tiny, tmp_path, caplog) -> None:
    from transformers import TrainerCallback

    class Broken(TrainerCallback):
        def on_log(self, *args, **kwargs):
            raise OSError("the network is away")

    trainer = make_trainer(make_config(tiny, tmp_path, max_steps=1, max_kl=1e6), warm=False)
    trainer.add_callback(Broken())
    with serve(FakeControl()) as control:
        control.add("b0", table(conversation(0)))
        worker = Worker(trainer.config, Client(control.url), trainer)
        worker.reporter.names = ["broken"]
        assert worker.run() == 0
        assert control.done == {"b0": "trained"}
    assert "could not be reported" in caplog.text


@pytest.mark.skipif(not BOARD, reason="TensorBoard is not installed")
def test_tensorboard_has_a_file_with_the_figures(tiny, tmp_path) -> None:
    config = make_config(tiny, tmp_path, max_steps=1, max_kl=1e6, report_to=["tensorboard"])
    with serve(FakeControl()) as control:
        control.add("b0", table(conversation(0)))
        assert Worker(config, Client(control.url), make_trainer(config, warm=False)).run() == 0
    (file,) = (tmp_path / "trainer").rglob("*tfevents*")
    assert b"logprob_gap" in file.read_bytes()
