from __future__ import annotations

import json
from dataclasses import replace

import torch
from tests.support.tiny import make_config, make_trainer

from slipstream.shared.files import bytes_of
from slipstream_trainer.algorithm.learning_rate import StepPace
from slipstream_trainer.algorithm.traffic import Traffic
from slipstream_trainer.model.weights import Snapshot
from slipstream_trainer.versions.checkpoint import DONE_FILE, Checkpoints, CheckpointState


def test_everything_comes_back(tiny, tmp_path) -> None:
    trainer = make_trainer(make_config(tiny, tmp_path))
    found = Checkpoints(tmp_path / "c", 3)
    assert found.latest() is None
    state = CheckpointState(
        3,
        StepPace(0.5, 1),
        "tiny",
        "tiny@3",
        adapter="tiny@3",
        batch="b7",
        lease="lease",
        event={"kind": "step", "data": {"loss": 1.0}},
        advantages={"e": 0.5},
        traffic=Traffic({"7f": [3.5, 0.25, 4.0]}, [9.0, 2.0, 12.0]),
    )
    torch.manual_seed(4)
    path = found.save(trainer.learner, trainer.learner.save(keep=True), state)
    expected = torch.rand(3)
    weights = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for p in trainer.learner.trained:
            p.zero_()
    assert found.load(path, trainer.learner) == state
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(p, weights[n]) for n, p in trainer.model.named_parameters() if p.requires_grad)
    assert (path / "adapter" / "adapter_model.safetensors").is_file()
    found.set_told(path)
    assert '"e"' not in (path / "state.json").read_text(), "the proxy has the ack: clients' ids are not kept"
    state = replace(state, advantages={})
    assert found.read(path) == state
    older = json.loads((path / "state.json").read_text())
    del older["traffic"]
    (path / "state.json").write_text(json.dumps(older))
    assert found.read(path) == replace(state, traffic=Traffic())


def test_the_newest_and_the_live_one_are_kept(tiny, tmp_path) -> None:
    trainer = make_trainer(make_config(tiny, tmp_path))
    found = Checkpoints(tmp_path / "c", 2)
    snapshot = Snapshot.take(trainer.model, trainer.optimizer)
    for n in range(5):
        path = found.save(trainer.learner, snapshot, CheckpointState(n, weights=f"tiny@{n}"))
        if n != 2:
            found.set_told(path)
    found.prune({"tiny@0"})
    assert [found.read(p).step for p in found.all()] == [0, 2, 3, 4], "live, not told yet, and the two newest"
    assert found.of_weights("tiny@0") == found.all()[:1]
    assert found.of_weights("tiny@1") == []


def test_one_of_before_that_is_acknowledged_loses_its_names_at_the_next_start(tmp_path) -> None:
    for n, told in ((1, True), (2, False)):
        path = tmp_path / f"step-{n:08d}"
        path.mkdir()
        (path / "state.json").write_text('{"advantages": {"-/run": 1.0}}')
        if told:
            (path / DONE_FILE).touch()
    Checkpoints(tmp_path, 2)
    kept = [json.loads(p.read_text())["advantages"] for p in sorted(tmp_path.glob("*/state.json"))]
    assert kept == [{}, {"-/run": 1.0}]


def test_half_a_checkpoint_is_none(tmp_path) -> None:
    (tmp_path / ".tmp-trainer-99").mkdir()
    (tmp_path / "step-00000007").mkdir()
    found = Checkpoints(tmp_path, 2)
    assert found.latest() is None
    assert not (tmp_path / ".tmp-trainer-99").exists()


def test_what_only_a_rollback_needs_keeps_no_copy_of_the_adapter(tiny, tmp_path) -> None:
    """Weights and optimiser come back bit for bit. The newest checkpoint is whole."""
    trainer = make_trainer(make_config(tiny, tmp_path))
    found = Checkpoints(tmp_path / "c", 1)
    for p in trainer.learner.trained:
        p.grad = torch.randn_like(p)
    trainer.optimizer.step()
    snapshot = Snapshot.take(trainer.model, trainer.optimizer)
    old, new = (
        found.save(trainer.learner, snapshot, CheckpointState(n, weights=f"tiny@{n}", adapter=f"tiny@{n}"))
        for n in (1, 2)
    )
    before = bytes_of(old)
    for path in (old, new):
        found.set_told(path)
    found.prune({"tiny@1"}, keep=1)
    assert before - bytes_of(old) > 0.9 * sum(4 * p.numel() for p in trainer.learner.trained)
    assert bytes_of(new) == before
    with torch.no_grad():
        for p in trainer.learner.trained:
            p.zero_()
    found.load(old, trainer.learner)
    assert all(torch.equal(p, snapshot.weights[n]) for n, p in trainer.model.named_parameters() if p.requires_grad)
    kept: dict[int, dict[str, torch.Tensor]] = snapshot.optimizer["state"]  # type: ignore[assignment]
    for mine, theirs in zip(trainer.optimizer.state_dict()["state"].values(), kept.values(), strict=True):
        assert torch.equal(mine["exp_avg_sq"], theirs["exp_avg_sq"])
