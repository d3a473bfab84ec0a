"""Changes of adapters' states (several proxies: tests/proxy/store/test_fleet.py)."""

from __future__ import annotations

import os

import pytest

from slipstream.contract import Adapter
from slipstream_proxy.control.adapters.changes import event
from slipstream_proxy.control.adapters.journal import AdapterJournal
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.storage.mutation_log import Mutations
from slipstream_proxy.control.storage.store_handle import StoreHandle
from slipstream_proxy.log.ids import new_id
from slipstream_proxy.log.segments import list_segments, read_segment
from slipstream_proxy.log.spool import SpoolWriter


def adapter(n: int, state: str = "live", **more) -> Adapter:
    return Adapter(name=f"tiny@{n}", model="tiny", version=n, state=state, created=1.0, path=f"tiny@{n}", **more)


@pytest.fixture
async def writer(tmp_path):
    made = SpoolWriter(tmp_path / "spool", "control", durability="process")
    yield made
    await made.close()


def kept(writer) -> list[tuple[str, str]]:
    segments = list_segments(writer.dir)["control"]
    frames = [f.head for _, path in segments for f in read_segment(path)]
    return [(h["op"], h["data"].get("name") or h["data"].get("kind")) for h in frames]


async def test_a_change_is_a_mutation_and_its_event(plane, writer):
    stores = StoreHandle("duckdb:///none")
    stores.replace(plane.deps.store, None)
    registry = AdapterRegistry(plane.config)
    journal = AdapterJournal(registry, stores, Mutations(writer, stores, new_id))
    journal.restore()
    await journal.change([adapter(1, "retired"), adapter(2)], event("promote", adapter="tiny@2"))
    assert kept(writer) == [("adapter", "tiny@1"), ("adapter", "tiny@2"), ("event", "promote")]
    assert {a.name: a.state.value for a in registry.items.values()} == {"tiny@1": "retired", "tiny@2": "live"}
    assert journal.wake.is_set()


async def test_a_change_waits_for_the_disk_once(plane, tmp_path, monkeypatch):
    syncs, real = [], os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (syncs.append(fd), real(fd))[1])
    writer = SpoolWriter(tmp_path / "spool", "control", durability="power")
    stores = StoreHandle("duckdb:///none")
    stores.replace(plane.deps.store, None)
    journal = AdapterJournal(AdapterRegistry(plane.config), stores, Mutations(writer, stores, new_id))
    await journal.change([adapter(1, "retired"), adapter(2)], event("promote", adapter="tiny@2"))
    assert kept(writer) == [("adapter", "tiny@1"), ("adapter", "tiny@2"), ("event", "promote")]
    assert syncs.count(writer._fd) == 1
    await writer.close()


async def test_a_shared_store_that_cannot_be_opened_decides_nothing(plane, writer):
    stores = StoreHandle("postgresql:///nowhere")
    registry = AdapterRegistry(plane.config)
    journal = AdapterJournal(registry, stores, Mutations(writer, stores, new_id))
    journal.restore()
    with pytest.raises(Problem) as e:
        await journal.change([adapter(1)])
    assert (e.value.status, registry.items) == (503, {})
    assert not list_segments(writer.dir)  # nothing is kept that the other proxies do not learn of
