"""The trainer's process with tenants: each learns in its own folder, and what fails in one costs that one alone."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from prometheus_client import generate_latest
from tests.support import wait_for
from tests.support.control import FakeControl, serve
from tests.support.tenant_trainers import TenantWorld
from tests.support.tiny import conversation, make_config, make_trainer, table

from slipstream.client import Client
from slipstream.tenants import tenant_config
from slipstream_trainer.model.learner import Capabilities
from slipstream_trainer.model.weights import trained_of
from slipstream_trainer.run import worker as worker_module
from slipstream_trainer.run.worker import Worker


def own_groups(n: int):
    """A batch of groups that are in no other."""
    samples = conversation(10 + n)
    for s in samples:
        s.group = f"{n}-{s.group}"
    return table(samples)


@pytest.fixture
def stack():
    with ExitStack() as found:
        yield found


def test_tenants_learn_apart_new_ones_too_and_an_idle_one_costs_nothing(tiny, tmp_path, monkeypatch, stack) -> None:
    world = TenantWorld(tiny, tmp_path, monkeypatch, stack, ["acme", "idle"])
    with world:
        for name in ("", "acme", "late"):
            for n in range(2):
                world.controls[name].add(f"b{n}", table(conversation(n)))
        wait_for(lambda: all(len(world.controls[n].done) == 2 for n in ("", "acme")), 60)
        assert not world.controls["late"].done
        world.tell("late")
        wait_for(lambda: len(world.controls["late"].done) == 2, 60)
        shown = generate_latest(world.all.first.metrics).decode()
        assert 'slipstream_trainer_step{tenant="acme"} 2.0' in shown and "slipstream_trainer_step 2.0" in shown
    for name in ("", "acme", "late"):
        folder = tenant_config(world.config, name).adapters_dir
        assert sorted(p.name for p in folder.iterdir()) == ["tiny@1", "tiny@2"]
        assert world.controls[name].of_kind("step")[-1]["step"] == 2
    weights = [p.read_bytes() for p in tmp_path.rglob("tiny@2/adapter_model.safetensors")]
    assert len(weights) == 3 and len(set(weights)) == 1, "from the same batches all learn the same"
    assert not world.checkpoints("idle") and not world.controls["idle"].learner_token


def test_what_fails_in_one_tenant_costs_that_one_alone(tiny, tmp_path, monkeypatch, stack) -> None:
    monkeypatch.setattr(worker_module, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(worker_module, "LAST_PAUSE", 0.01)
    world = TenantWorld(tiny, tmp_path, monkeypatch, stack, ["acme", "hostile"])
    plain = Worker.train

    def train(self: Worker, samples):
        if self.config.tenant == "hostile" and self.batch == "b0":
            for _, p in trained_of(self.trainer.model):
                p.data.fill_(float("nan"))
            raise RuntimeError("a batch that cannot be trained on")
        return plain(self, samples)

    monkeypatch.setattr(Worker, "train", train)
    with world:
        for n in range(3):
            for name in ("acme", "hostile"):
                world.controls[name].add(f"b{n}", own_groups(n))
        wait_for(lambda: all(len(world.controls[n].done) == 3 for n in ("acme", "hostile")), 60)
    assert world.controls["acme"].done == dict.fromkeys(("b0", "b1", "b2"), "trained")
    assert world.controls["hostile"].done == {"b0": "skipped", "b1": "trained", "b2": "trained"}
    assert world.controls["hostile"].of_kind("failed") and not world.controls["acme"].of_kind("failed")
    alone = make_config(tiny, tmp_path / "alone", max_steps=3)
    with serve(FakeControl()) as control:
        for n in range(3):
            control.add(f"b{n}", own_groups(n))
        Worker(alone, Client(control.url), make_trainer(alone, warm=False)).run()
    last = "adapters/tiny@3/adapter_model.safetensors"
    assert (tmp_path / "tenants" / "acme" / last).read_bytes() == (tmp_path / "alone" / last).read_bytes()


def test_a_learner_of_one_policy_leaves_a_tenant_that_comes_and_says_why(tiny, tmp_path, monkeypatch, stack) -> None:
    world = TenantWorld(tiny, tmp_path, monkeypatch, stack, [])
    world.all.first.trainer.learner.capabilities = Capabilities(tenants=False)
    with world:
        world.tell("late")
        wait_for(lambda: world.controls["late"].of_kind("failed"), 60)
        world.controls[""].add("b0", table(conversation(0)))
        wait_for(lambda: world.controls[""].done, 60)
    assert "tenants.late: it trains one policy" in world.controls["late"].of_kind("failed")[0]["reason"]
    assert not world.checkpoints("late")


def test_a_tenant_that_is_removed_while_it_trains_gives_its_batch_back(tiny, tmp_path, monkeypatch, stack) -> None:
    world = TenantWorld(tiny, tmp_path, monkeypatch, stack, ["acme"])
    with world:
        world.controls["acme"].add("b0", table(conversation(0)))
        wait_for(lambda: world.controls["acme"].done, 60)
        world.known = []
        world.tell()
        wait_for(lambda: not world.all.threads and len(world.all.first.seat.turns.seats) == 1, 60)
        world.controls[""].add("b0", table(conversation(0)))
        wait_for(lambda: world.controls[""].done, 60)
    assert world.controls["acme"].released and not world.controls["acme"].learner_token


def test_a_rollback_of_one_tenant_leaves_the_others_what_they_have(tiny, tmp_path, monkeypatch, stack) -> None:
    world = TenantWorld(tiny, tmp_path, monkeypatch, stack, ["acme", "other"])
    with world:
        for name in ("acme", "other"):
            world.controls[name].add("b0", table(conversation(1)))
        wait_for(lambda: all(world.controls[n].done for n in ("acme", "other")), 60)
        world.controls["acme"].roll_back("tiny@1", "tiny")
        wait_for(lambda: world.controls["acme"].of_kind("restored"), 60)
        for name in ("acme", "other"):
            world.controls[name].add("b1", table(conversation(2)))
        wait_for(lambda: all(len(world.controls[n].done) == 2 for n in ("acme", "other")), 60)
    assert world.controls["acme"].adapters["tiny@2"]["parent"] == "tiny"
    assert world.controls["other"].adapters["tiny@2"]["parent"] == "tiny@1"
    assert not world.controls["other"].of_kind("restored")
