"""What is published once, whenever the trainer is killed, is in test_worker.py."""

from __future__ import annotations

import threading

import pytest
from tests.support.control import FakeControl, serve
from tests.support.tiny import make_config

from slipstream.client import Client
from slipstream.contract import BatchAck
from slipstream.errors import ApiError, SlipstreamError
from slipstream_trainer.versions.checkpoint import Checkpoints
from slipstream_trainer.versions.events import Metrics
from slipstream_trainer.versions.learner import Stop
from slipstream_trainer.versions.publisher import Publisher
from slipstream_trainer.versions.shipping import put_adapter


@pytest.fixture
def proxy(tmp_path):
    with serve(FakeControl()) as control:
        config = make_config(tmp_path / "model", tmp_path)
        yield (
            control,
            Publisher(config, Client(control.url), Checkpoints(tmp_path / "c", 2), Metrics(), threading.Event()),
        )


def test_a_refusal_is_not_repeated(proxy) -> None:
    control, publisher = proxy
    asked = []

    def ask() -> None:
        asked.append(1)
        raise ApiError(404, "no")

    with pytest.raises(ApiError):
        publisher.patiently(ask)
    assert len(asked) == 1


def test_waiting_ends_when_the_process_is_to_end(proxy) -> None:
    control, publisher = proxy
    control.broken = 10**6
    publisher.stop.set()
    with pytest.raises(Stop):
        publisher.adapters()


def test_a_lost_lease_is_no_error(proxy) -> None:
    control, publisher = proxy
    control.done["b"] = "trained"
    publisher.ack("b", BatchAck(lease="x", outcome="skipped"))
    assert control.done == {"b": "trained"}


def test_the_next_name(proxy, tmp_path) -> None:
    control, publisher = proxy
    assert publisher.new_name(publisher.adapters()) == "tiny@1"
    (tmp_path / "adapters" / "tiny@4").mkdir(parents=True)
    assert publisher.new_name(publisher.adapters()) == "tiny@5"


def test_a_folder_that_is_no_adapter_is_not_copied(tmp_path) -> None:
    (tmp_path / "bad").mkdir()
    with pytest.raises(SlipstreamError, match="adapter_config"):
        put_adapter(tmp_path / "bad", tmp_path / "adapters" / "m@1", 16, "")
    assert not (tmp_path / "adapters").exists()
