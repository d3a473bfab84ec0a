"""Another trainer.lora_alpha, rank or rsLoRA on a trained system: what was learned stays, or it is refused in words."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.control import FakeControl, serve
from tests.support.tiny import conversation, make_config, make_trainer, table

from slipstream.client import Client
from slipstream.errors import ConfigError
from slipstream_trainer.run.worker import Worker
from slipstream_trainer.versions.checkpoint import STATE_FILE, Checkpoints
from slipstream_trainer.versions.tensor_tree import load_tree, save_tree

FEW = ["q_proj", "v_proj"]


def worker_of(tiny: Path, folder: Path, control: FakeControl, **settings: Any) -> Worker:
    config = make_config(tiny, folder, **settings)
    return Worker(config, Client(control.url), make_trainer(config, warm=False))


def logprobs(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=torch.arange(3, 40)[None]).logits, -1)


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    """(Folder, control plane's adapters, log-probabilities) after two steps with few layers at rank 8 and alpha 32."""
    folder = tmp_path_factory.mktemp("trained")
    with serve(FakeControl()) as control:
        worker = worker_of(tiny, folder, control, max_steps=2, lora_targets=FEW)
        for n in range(2):
            control.add(f"b{n}", table(conversation(n)))
        start = logprobs(worker.trainer.model)
        assert worker.run() == 0
        learned = logprobs(worker.trainer.model)
        assert float((learned - start).abs().max()) > 0.01
        return folder, dict(control.adapters), control.live, learned


def copy(trained, folder: Path, control: FakeControl, older: bool, gone: bool) -> None:
    source, adapters, control.live, _ = trained
    control.adapters = {name: dict(fields) for name, fields in adapters.items()}
    shutil.copytree(source, folder)
    for path in folder.glob("checkpoints/step-*"):
        if gone:
            shutil.rmtree(path)
        elif older:  # as an older version of the trainer wrote it
            raw = load_tree(path / STATE_FILE)
            del raw["scales"]
            save_tree(raw, path / STATE_FILE)


@pytest.mark.parametrize("left", ["checkpoint", "older checkpoint", "published files"])
@pytest.mark.parametrize(
    "change",
    [
        {"lora_alpha": 64.0}, {"lora_alpha": 3.0}, {"rslora": True}, {"lora_rank": 16}, {"lora_rank": 11, "rslora": True, "lora_alpha": 5.0},
        {"lora_targets": [*FEW, "up_proj"]}, {"lora_rank": 8},
    ],
    ids=str,
)  # fmt: skip
def test_a_change_is_carried_out_exactly(tiny, tmp_path, trained, change: dict[str, Any], left: str) -> None:
    folder = tmp_path / "f"
    with serve(FakeControl()) as control:
        copy(trained, folder, control, left.startswith("older"), left == "published files")
        worker = worker_of(tiny, folder, control, **{"lora_targets": FEW} | change)
        worker.current.recover()
        assert worker.current.state.weights == "tiny@2"
        assert float((logprobs(worker.trainer.model) - trained[3]).abs().max()) < 1e-5
        control.add("more", table(conversation(7)))
        assert worker.once(), "training goes on"
        worker.publisher.finish()
        assert control.done["more"] == "trained"
        after = logprobs(worker.trainer.model)
        again = worker_of(tiny, folder, control, **{"lora_targets": FEW} | change)
        again.current.recover()
        assert again.current.state.weights == "tiny@3"
        assert torch.equal(logprobs(again.trainer.model), after), "the new scale is remembered, too"


@pytest.mark.parametrize("gone", [False, True], ids=["checkpoint", "published files"])
@pytest.mark.parametrize(
    ("change", "says"),
    [({"lora_rank": 4}, "set trainer.lora_rank = 8"), ({"lora_targets": ["q_proj"]}, "v_proj.*add them to trainer.lora_targets")],
)  # fmt: skip
def test_what_has_no_place_is_refused_in_words(tiny, tmp_path, trained, change, says: str, gone: bool) -> None:
    with serve(FakeControl()) as control:
        copy(trained, tmp_path / "f", control, False, gone)
        worker = worker_of(tiny, tmp_path / "f", control, **{"lora_targets": FEW} | change)
        with pytest.raises(ConfigError, match=says):
            worker.run()
        assert list(control.adapters) == ["tiny@1", "tiny@2"], "nothing was published in its place"


def test_a_checkpoint_that_is_not_what_the_engine_serves_gives_way(tiny, tmp_path, trained) -> None:
    folder = tmp_path / "f"
    with serve(FakeControl()) as control:
        copy(trained, folder, control, False, False)
        newest = Checkpoints(folder / "checkpoints", 3).latest()
        raw = load_tree(newest / STATE_FILE)
        raw["scales"] = {name: 2 * scale for name, scale in raw["scales"].items()}
        save_tree(raw, newest / STATE_FILE)
        worker = worker_of(tiny, folder, control, lora_targets=FEW)
        worker.current.recover()
        assert float((logprobs(worker.trainer.model) - trained[3]).abs().max()) < 1e-5
        assert not worker.trainer.optimizer.state
