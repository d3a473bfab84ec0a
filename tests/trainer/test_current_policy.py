"""Where the weights stand; what a rollback restores, with everything that may be gone, is in test_recovery.py."""

from __future__ import annotations

import shutil

import torch
from safetensors.torch import load_file, save_file
from tests.support.control import FakeControl, serve
from tests.support.tiny import adapter_state, conversation, make_config, make_trainer, table

from slipstream.client import Client
from slipstream.contract import AdapterIn
from slipstream_trainer.model.torch_learner import TorchLearner
from slipstream_trainer.run.worker import Worker


def first_of(worker) -> dict[str, torch.Tensor]:
    """What the KL term holds to."""
    assert isinstance(worker.trainer.learner, TorchLearner)
    return worker.trainer.learner.first


def make_worker(tiny, folder, control: FakeControl, **settings) -> Worker:
    config = make_config(tiny, folder, max_kl=1e3, **settings)
    return Worker(config, Client(control.url), make_trainer(config, warm=False))


def test_the_count_of_steps_outlives_the_checkpoints(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        for n in range(2):
            control.add(f"b{n}", table(conversation(n)))
        make_worker(tiny, tmp_path, control, max_steps=2).run()
        shutil.rmtree(tmp_path / "checkpoints")
        worker = make_worker(tiny, tmp_path, control)
        worker.current.recover()
        assert (worker.current.state.step, worker.current.state.weights) == (2, "tiny@2")
        assert control.of_kind("restored")[0]["cause"] == "there is no checkpoint"


def test_a_chosen_start_counts_more_than_what_is_live(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        control.add("b0", table(conversation(0)))
        make_worker(tiny, tmp_path / "a", control, max_steps=1).run()
        start = str(tmp_path / "a" / "adapters" / "tiny@1")
        worker = make_worker(tiny, tmp_path / "b", control, init_adapter=start)
        before = adapter_state(worker.trainer.model)
        worker.current.recover()
        assert control.live == "tiny@1"
        assert worker.current.state.weights == "tiny"
        assert all((before[n] == w).all() for n, w in adapter_state(worker.trainer.model).items())
        assert not control.of_kind("restored")


def test_a_version_that_another_made_is_gone_on_from_once_it_is_accepted(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        control.add("b0", table(conversation(0)))
        make_worker(tiny, tmp_path / "a", control, max_steps=1).run()
        worker = make_worker(tiny, tmp_path / "a", control)
        worker.current.recover()
        folder = tmp_path / "a" / "adapters"
        shutil.copytree(folder / "tiny@1", folder / "tiny@2")
        weights = load_file(folder / "tiny@2" / "adapter_model.safetensors")
        save_file({n: w + 0.25 for n, w in weights.items()}, folder / "tiny@2" / "adapter_model.safetensors")
        worker.current.publisher.client.add_adapter(
            AdapterIn(path="tiny@2", model="tiny", meta={"distilled_from": "gpt"})
        )
        control.adapters["tiny@2"]["state"], control.live = "candidate", "tiny@1"
        worker.current.look()
        assert worker.current.state.weights == "tiny@1", "it is on trial"
        control.adapters["tiny@2"]["state"], control.live = "live", "tiny@2"
        worker.current.look()
        assert (worker.current.state.weights, worker.current.state.published) == ("tiny@2", "tiny@2")
        mine = adapter_state(worker.trainer.model)
        assert all((mine[n.replace(".weight", ".default.weight")] == w + 0.25).all() for n, w in weights.items())
        assert "newer than tiny@1" in control.of_kind("restored")[-1]["cause"]
        assert all((first_of(worker)[n] == w).all() for n, w in mine.items()), "the KL term holds to it"
        again = make_worker(tiny, tmp_path / "a", control)
        again.current.recover()
        assert all((first_of(again)[n] == w).all() for n, w in mine.items()), "after a restart, too"
        control.roll_back("tiny@2", "tiny@1")
        again.current.look()
        assert not any("lora_B" in n and w.any() for n, w in first_of(again).items()), "it starts as the base model"
