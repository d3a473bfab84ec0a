from __future__ import annotations

import importlib.util

import pytest
from tests.support.control import FakeControl, serve
from tests.support.tiny import conversation, make_config, make_trainer, table

from slipstream.client import Client
from slipstream.errors import ConfigError
from slipstream_trainer.run.worker import Worker
from slipstream_trainer.versions.reporting import check_report_to


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


def of_tensorboard(folder) -> dict[str, tuple[set[str], set[str]]]:
    """Run → (figures, texts), from its folder."""
    from tensorboardX.proto import event_pb2  # type: ignore[import-untyped]

    found = {}
    for path in folder.rglob("events.out*"):
        data, at, figures, texts = path.read_bytes(), 0, set(), set()
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            for value in event_pb2.Event.FromString(data[at + 12 : at + 12 + size]).summary.value:
                (figures if value.HasField("simple_value") else texts).add(value.tag.removesuffix("/text_summary"))
            at += 16 + size
        found[path.parent.name] = (figures, texts)
    return found


def of_mlflow(folder) -> dict[str, tuple[set[str], set[str]]]:
    mlflow = pytest.importorskip("mlflow")
    client = mlflow.MlflowClient()
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    (own,) = [r for r in runs if "mlflow.parentRunId" not in r.data.tags]
    children = [r for r in runs if r.data.tags.get("mlflow.parentRunId") == own.info.run_id]
    return {
        r.info.run_name: ({f"version/{m}" for m in r.data.metrics}, {*r.data.params, *r.data.tags}) for r in children
    }


@pytest.mark.parametrize(("name", "read"), [("tensorboard", of_tensorboard), ("mlflow", of_mlflow)])
def test_each_adapter_is_a_run_with_its_settings_and_what_it_came_of(tiny, tmp_path, monkeypatch, name, read) -> None:
    if name == "mlflow":
        pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    config = make_config(tiny, tmp_path, max_steps=2, max_kl=1e6, report_to=[name])
    with serve(FakeControl()) as control:
        for i in range(2):
            control.add(f"b{i}", table(conversation(i)))
        assert Worker(config, Client(control.url), make_trainer(config, warm=False)).run() == 0
    found = read(config.root / "trainer" / "runs")
    assert name != "tensorboard" or any("train/logprob_gap" in figures for figures, _ in found.values()), "its own run"
    for version in ("tiny@1", "tiny@2"):
        figures, texts = found[version]
        assert {"version/reward", "version/kl", "version/loss"} <= figures
        assert {"trainer.lora_rank", "engine.model", "slipstream.parent", "slipstream.batches"} <= texts
