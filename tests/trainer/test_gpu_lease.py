"""The trainer's turns on a GPU that it shares with the engine."""

from __future__ import annotations

import threading

import httpx
import pytest
import torch
from tests.support import wait_for
from tests.support.control import FakeControl, serve
from tests.support.tiny import conversation, make_config, make_trainer, table

from slipstream.client import Client
from slipstream.config import Config
from slipstream.errors import StartError
from slipstream_trainer.run.gpu_lease import GpuLease, Parking, check_share
from slipstream_trainer.run.worker import Worker
from slipstream_trainer.versions.learner import Stop


def shared(tiny, tmp_path, **trainer) -> Config:
    config = make_config(tiny, tmp_path, **trainer)
    config.engine.share = True
    return config


def test_a_step_is_a_turn_and_says_what_it_cost(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        control.add("b0", table(conversation(0)))
        control.falling = 2
        config = shared(tiny, tmp_path, max_steps=1)
        worker = Worker(config, Client(control.url), make_trainer(config, warm=False))
        whole = worker.train

        def train(samples):
            assert control.held == worker.learner.name
            return whole(samples)

        worker.train = train  # type: ignore[method-assign]
        assert worker.run() == 0
        assert control.holds == ["busy", "busy", "hold", "release"] and control.held is None
        (step,) = control.of_kind("step")
        assert (step["sleep_seconds"], step["wake_seconds"]) == (0.5, 0.25)
        assert step["hold_seconds"] >= step["seconds"] > 0


def test_a_turn_is_renewed_and_ends_whatever_happens_in_it(tiny, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("slipstream_trainer.run.gpu_lease.RENEW_INTERVAL_S", 0.01)
    with serve(FakeControl()) as control:
        gpu_lease = GpuLease(shared(tiny, tmp_path), Client(control.url), "t")
        with pytest.raises(KeyError), gpu_lease.take():
            wait_for(lambda: control.holds.count("hold") >= 3, 60)
            raise KeyError
        assert control.held is None and control.holds[-1] == "release"
        count = len(control.holds)
        threading.Event().wait(0.05)
        assert len(control.holds) == count, "nobody renews any more"


def test_a_proxy_that_is_busy_is_waited_for_and_the_end_is_not(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        gpu_lease = GpuLease(shared(tiny, tmp_path), Client(control.url), "t")
        control.broken = 2
        with gpu_lease.take():
            assert control.held == "t"
        control.broken = 10**6
        gpu_lease.stop.set()
        with pytest.raises(Stop), gpu_lease.take():
            raise AssertionError


def test_a_proxy_that_does_not_share_ends_the_start_and_another_trainers_turn_is_waited_for(tiny, tmp_path) -> None:
    """As ``control/api/routes/work.py`` and ``engine_lease.py`` answer: the field tells the two refusals apart."""
    answers = [{"message": "w has the engine", "field": "body.worker"}, {"message": "they do not share a GPU here"}]
    asked = iter(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(409, json={"error": {"type": "conflict", **next(asked, answers[-1])}})

    client = Client("http://proxy")
    client.http = httpx.Client(base_url="http://proxy", transport=httpx.MockTransport(answer))
    lease = GpuLease(shared(tiny, tmp_path), client, "t")
    with pytest.raises(StartError, match=r"engine\.share is set here and not at the proxy"), lease.take():
        raise AssertionError
    assert next(asked, None) is None


def test_without_sharing_there_is_nothing_to_ask(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        with GpuLease(make_config(tiny, tmp_path), Client(control.url), "t").take() as figures:
            pass
        assert figures == {} and control.holds == []


def test_what_cannot_share_is_refused(tiny, tmp_path) -> None:
    with pytest.raises(StartError, match="4bit"):
        check_share(shared(tiny, tmp_path, quantize="4bit"))
    with pytest.raises(StartError, match="frugal"):
        check_share(shared(tiny, tmp_path, mode="frugal"))
    check_share(shared(tiny, tmp_path))
    check_share(make_config(tiny, tmp_path, quantize="4bit"))


def test_a_base_that_waits_has_no_memory_and_comes_back_as_it_was(tiny, tmp_path) -> None:
    trainer = make_trainer(make_config(tiny, tmp_path), warm=False)
    frozen = [p for p in trainer.model.parameters() if not p.requires_grad]
    for p in frozen:  # as after a move to a GPU: memory of their own
        p.data = p.data.clone()
    before = [p.data.clone() for p in frozen]
    parking = Parking(trainer.model)
    parking.enter()
    for _ in range(2):
        parking.leave()
        assert not any(p.untyped_storage().nbytes() for p in frozen)
        assert all(p.untyped_storage().nbytes() for p in trainer.learner.trained)
        parking.enter()
        assert all(torch.equal(p.data, b) for p, b in zip(frozen, before, strict=True))


def test_nobody_waits_for_a_batch_that_is_skipped(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        nothing = conversation(0)
        for s in nothing:
            s.trainable, s.reason = False, "top_k"
        control.add("b0", table(nothing))
        config = shared(tiny, tmp_path)
        worker = Worker(config, Client(control.url), make_trainer(config, warm=False))
        worker.current.recover()
        assert worker.once() and control.done == {"b0": "skipped"} and control.holds == []
