"""A rollback always ends in training that goes on, whatever is left on the disk of checkpoints and adapters."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.support.control import FakeControl, serve
from tests.support.tiny import adapter_state, conversation, make_config, make_trainer, table

from slipstream.client import Client
from slipstream.contract import Adapter, AdapterList, AdapterState
from slipstream_trainer.run.worker import Worker
from slipstream_trainer.versions.recovery import returnable

VERSIONS = 4


@pytest.fixture(scope="module")
def trainer(tiny, tmp_path_factory):
    """One for all cases; ``Bench.worker`` puts it back to its start."""
    return make_trainer(make_config(tiny, tmp_path_factory.mktemp("one")), warm=False)


class Bench:
    """A folder in which four versions were published, and what their weights were."""

    def __init__(self, tiny: Path, folder: Path, trainer) -> None:
        self.tiny, self.folder, self.trainer = tiny, folder, trainer
        self.start = adapter_state(trainer.model)
        self.weights: dict[str, dict[str, torch.Tensor]] = {}
        self.momentum: dict[str, torch.Tensor] = {}
        with serve(FakeControl()) as control:
            worker = self.worker(control, folder, keep_checkpoints=100)
            worker.current.recover()
            self._note("tiny")
            for n in range(VERSIONS):
                control.add(f"b{n}", table(conversation(n)))
                assert worker.once()
                worker.publisher.finish()
                self._note(worker.current.state.weights)
            self.adapters = dict(control.adapters)

    def _note(self, name: str) -> None:
        self.weights[name] = adapter_state(self.trainer.model)
        self.momentum[name] = self.moment()

    def moment(self) -> torch.Tensor:
        state = self.trainer.optimizer.state
        return torch.cat(
            [state[p]["exp_avg"].flatten() for p in self.trainer.learner.trained if p in state] or [torch.zeros(1)]
        )

    def worker(self, control: FakeControl, folder: Path, **settings) -> Worker:
        with torch.no_grad():
            for name, p in self.trainer.model.named_parameters():
                if p.requires_grad:
                    p.copy_(self.start[name])
        self.trainer.optimizer.state.clear()
        config = make_config(self.tiny, folder, max_kl=1e3, **settings)
        self.trainer.config = config
        return Worker(config, Client(control.url), self.trainer)

    def are(self, name: str) -> bool:
        now = adapter_state(self.trainer.model)
        return all(torch.equal(now[n], w) for n, w in self.weights[name].items())


@pytest.fixture(scope="module")
def bench(tiny, tmp_path_factory, trainer) -> Bench:
    return Bench(tiny, tmp_path_factory.mktemp("bench"), trainer)


def damage(folder: Path, how: str) -> None:
    if how == "gone":
        shutil.rmtree(folder)
    elif how == "cut":
        raw = (folder / "state.safetensors").read_bytes()
        (folder / "state.safetensors").write_bytes(raw[: len(raw) // 2])
    elif how == "unreadable":
        (folder / "state.json").write_text('{"step": ')


DAMAGE = ("whole", "gone", "cut", "unreadable")


@pytest.mark.parametrize("running", [True, False], ids=["running", "restarted"])
@pytest.mark.parametrize("target", ["tiny", "tiny@2"])
def test_whatever_is_gone_a_rollback_restores_and_training_goes_on(bench, tmp_path, target: str, running: bool) -> None:
    """Checkpoint of the target × the newest checkpoint × the target's own files × every other checkpoint."""
    old = 0 if target == "tiny" else 2
    for n, (first, last, files, others) in enumerate(
        itertools.product(DAMAGE, ("whole", "gone", "cut"), (True, False), ("gone",))
    ):
        case, folder = f"{first}, {last}, files {files}, others {others}", tmp_path / str(n)
        shutil.copytree(bench.folder, folder)
        with serve(FakeControl()) as control:
            control.adapters = {k: dict(v) for k, v in bench.adapters.items()}
            control.live = f"tiny@{VERSIONS}"
            worker = bench.worker(control, folder)
            if running:
                worker.current.recover()
            for i in range(VERSIONS + 1):
                damage(
                    folder / "checkpoints" / f"step-{i:08d}", first if i == old else last if i == VERSIONS else others
                )
            if not files:
                shutil.rmtree(folder / "adapters" / target, ignore_errors=True)
            for v in range(old + 1, VERSIONS + 1):
                control.roll_back(f"tiny@{v}", target)
            if running:
                worker.current.look()
            else:
                worker.current.recover()
            whole = first == "whole"
            if whole or files or target == "tiny":
                assert bench.are(target), case
                assert worker.current.state.weights == target, case
            else:
                assert bench.are("tiny"), case
                assert worker.current.state.weights == "tiny", case
            expected = bench.momentum[target] if whole else torch.zeros(1)
            assert torch.equal(bench.moment(), expected), case
            said = control.of_kind("restored")
            if said or running:  # a restart may find the target as the newest checkpoint that is left
                assert said[-1]["adapter"] == target, case
                assert whole or target == "tiny" or said[-1]["problem"], case
            else:
                assert target == "tiny" or whole, case
            control.add("more", table(conversation(9)))
            assert worker.once(), case
            worker.publisher.finish()
            assert control.done["more"] == "trained", case
            assert control.adapters[f"tiny@{VERSIONS + 1}"]["parent"] == worker.current.state.base, case
        shutil.rmtree(folder)


def test_a_lost_newest_checkpoint_is_no_rollback(bench, tmp_path) -> None:
    """The live version's checkpoint is gone, an older one is there: the live weights count, and the count of steps goes on."""
    shutil.copytree(bench.folder, tmp_path / "f")
    shutil.rmtree(tmp_path / "f" / "checkpoints" / f"step-{VERSIONS:08d}")
    with serve(FakeControl()) as control:
        control.adapters, control.live = dict(bench.adapters), f"tiny@{VERSIONS}"
        worker = bench.worker(control, tmp_path / "f")
        worker.current.recover()
        assert bench.are(f"tiny@{VERSIONS}")
        assert (worker.current.state.weights, worker.current.state.step) == (f"tiny@{VERSIONS}", VERSIONS)
        assert control.of_kind("restored")[0]["source"] == "adapter"


def test_the_accepted_version_keeps_its_checkpoint_and_the_others_go(bench, tmp_path) -> None:
    """Seven steps while the first version stays the accepted one: a rollback finds its optimiser."""
    with serve(FakeControl()) as control:
        worker = bench.worker(control, tmp_path, keep_checkpoints=2)
        worker.current.recover()
        for n in range(7):
            control.add(f"b{n}", table(conversation(n)))
            assert worker.once()
            worker.publisher.finish()
            for v in range(1, n + 1):  # as a gate does that accepted the first, and has not decided on the newest
                control.adapters[f"tiny@{v}"]["state"] = "live" if v == 1 else "retired"
            control.adapters[f"tiny@{n + 1}"]["state"] = "candidate" if n else "live"
        kept = [worker.current.checkpoints.read(p).weights for p in worker.current.checkpoints.all()]
        assert kept == ["tiny", "tiny@1", "tiny@6", "tiny@7"]
        control.roll_back("tiny@7", "tiny@1")
        worker.current.look()
        assert bench.are("tiny@1")
        assert torch.equal(bench.moment(), bench.momentum["tiny@1"])


@contextlib.contextmanager
def going_on(bench: Bench, folder: Path, *, room: bool = True) -> Iterator[tuple[FakeControl, Worker]]:
    """A proxy whose newest version is live, and a worker that goes on from it. ``room``: as the proxy says."""
    shutil.copytree(bench.folder, folder)
    with serve(FakeControl()) as control:
        control.adapters = {k: dict(v) for k, v in bench.adapters.items()}
        control.live, control.room = f"tiny@{VERSIONS}", room
        worker = bench.worker(control, folder)
        worker.current.recover()
        yield control, worker


def test_a_step_from_a_version_that_is_taken_back_meanwhile_is_not_published(bench, tmp_path, monkeypatch) -> None:
    with going_on(bench, tmp_path / "f") as (control, worker):
        train = worker.train

        def slow(samples):
            control.roll_back(f"tiny@{VERSIONS}", "tiny@2")
            return train(samples)

        monkeypatch.setattr(worker, "train", slow)
        control.add("late", table(conversation(9)))
        assert worker.once()
        worker.publisher.finish()
        assert control.done["late"] == "skipped"
        assert f"tiny@{VERSIONS + 1}" not in control.adapters
        assert bench.are("tiny@2")
        assert "rolled back meanwhile" in control.of_kind("skipped")[0]["reason"]


def test_steps_that_are_in_no_version_are_dropped_when_an_episode_of_theirs_is_forgotten(bench, tmp_path) -> None:
    with going_on(bench, tmp_path / "f", room=False) as (control, worker):
        for n in (5, 6):
            control.add(f"b{n}", table(conversation(n)))
            assert worker.once()
            worker.publisher.finish()
        assert worker.current.state.weights == f"tiny@{VERSIONS}+2"
        control.forgotten, control.room = ["b5"], True
        worker.current.look()
        assert bench.are(f"tiny@{VERSIONS}")
        assert torch.equal(bench.moment(), bench.momentum[f"tiny@{VERSIONS}"])
        assert list(control.adapters) == list(bench.adapters), "nothing was published from them"
        assert control.of_kind("restored")[0]["adapter"] == f"tiny@{VERSIONS}"
        control.add("b7", table(conversation(7)))
        assert worker.once()
        worker.publisher.finish()
        made = control.adapters[f"tiny@{VERSIONS + 1}"]
        assert (made["parent"], made["batches"]) == (f"tiny@{VERSIONS}", ["b7"])


@pytest.mark.parametrize("forgotten", ["b5", "late"], ids=["of a step before", "of the batch itself"])
def test_a_step_on_what_is_forgotten_meanwhile_counts_for_nothing(bench, tmp_path, monkeypatch, forgotten) -> None:
    with going_on(bench, tmp_path / "f", room=False) as (control, worker):
        control.add("b5", table(conversation(5)))
        assert worker.once()
        worker.publisher.finish()
        before, train = adapter_state(worker.trainer.model), worker.train

        def slow(samples):
            control.forgotten = [forgotten]
            return train(samples)

        monkeypatch.setattr(worker, "train", slow)
        control.add("late", table(conversation(9)))
        assert worker.once()
        worker.publisher.finish()
        assert control.done["late"] == "released"
        assert "an episode was forgotten" in control.of_kind("skipped")[0]["reason"]
        if forgotten == "b5":
            assert bench.are(f"tiny@{VERSIONS}") and worker.current.state.ahead == 0
        else:
            now = adapter_state(worker.trainer.model)
            assert all(torch.equal(now[n], w) for n, w in before.items())
            assert worker.current.state.unpublished == ["b5"]


def adapter(version: int, state: AdapterState, accepted: bool = False) -> Adapter:
    return Adapter(
        name=f"m@{version}", model="m", version=version, state=state, created=1.0, decided=float(version), path="x",
        accepted=accepted,
    )  # fmt: skip


def test_what_can_be_rolled_back_to() -> None:
    s = AdapterState
    known = AdapterList(
        adapters=[
            adapter(1, s.RETIRED, True), adapter(2, s.RETIRED, True), adapter(3, s.RETIRED), adapter(4, s.RETIRED, True),
            adapter(5, s.LIVE, True), adapter(6, s.ROLLED_BACK, True), adapter(7, s.CANDIDATE), adapter(8, s.LOADING),
        ],
        live={"m": "m@7"},
    )  # fmt: skip
    assert returnable(known, "m") == {"m", "m@2", "m@4", "m@5", "m@7", "m@8"}
    assert returnable(AdapterList(adapters=[], live={}), "m") == {"m"}


def test_weights_made_from_a_version_that_is_taken_back_are_left(bench, tmp_path) -> None:
    """The gate tries one version while newer ones wait: when it is taken back, they were never served, and go with it."""
    shutil.copytree(bench.folder, tmp_path / "f")
    with serve(FakeControl()) as control:
        control.adapters = {k: dict(v, state="retired") for k, v in bench.adapters.items()}
        control.adapters["tiny@1"] |= {"state": "live", "accepted": True}
        control.adapters["tiny@2"]["state"] = "candidate"
        control.live = "tiny@2"
        worker = bench.worker(control, tmp_path / "f")
        worker.current.recover()
        assert worker.current.state.weights == f"tiny@{VERSIONS}"
        control.roll_back("tiny@2", "tiny@1")
        worker.current.look()
        assert bench.are("tiny@1")
        assert torch.equal(bench.moment(), bench.momentum["tiny@1"])
        said = control.of_kind("restored")[0]
        assert (said["taken_back"], said["adapter"]) == ("tiny@2", "tiny@1")
        worker.current.look()
        assert len(control.of_kind("restored")) == 1
