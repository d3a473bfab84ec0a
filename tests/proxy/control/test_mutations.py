from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream_proxy.control.storage import mutation_log
from slipstream_proxy.control.storage.mutation_log import Mutations
from slipstream_proxy.control.storage.store_handle import StoreHandle
from slipstream_proxy.log.ids import new_id
from slipstream_proxy.log.segments import list_segments, read_segment
from slipstream_proxy.log.spool import SpoolWriter


async def test_huge_numbers_do_not_cost_the_record(tmp_path):
    writer = SpoolWriter(tmp_path, "control", durability="process")
    mutations = Mutations(writer, StoreHandle("duckdb:///none"), new_id)
    assert await mutations.put("event", {"a": 10**30, "b": [10**400], "c": {"d": 1}}) is False
    await writer.close()
    frame = next(read_segment(list_segments(tmp_path)["control"][0][1]))
    assert frame.head["data"]["a"] == 1e30
    assert frame.head["data"]["c"] == {"d": 1}


async def test_what_cannot_be_written_is_said(tmp_path):
    writer = SpoolWriter(tmp_path / "spool", "control", durability="process")
    (tmp_path / "spool").rmdir()
    assert await Mutations(writer, StoreHandle("duckdb:///none"), new_id).put("event", {}) is None
    await writer.close()


class SlowStore:
    """An ingester whose store takes nothing until it is told to."""

    def __init__(self, *, shared=False, broken=None):
        self.store = SimpleNamespace(shared=shared)
        self.stats = SimpleNamespace(broken=broken)
        self.waiting = {}
        self.hurried = 0

    def expect(self, id):
        future = self.waiting[id] = asyncio.get_running_loop().create_future()
        return future

    def hurry(self):
        self.hurried += 1

    def take(self):
        for future in self.waiting.values():
            if not future.done():
                future.set_result(None)


@pytest.fixture
async def slow(tmp_path):
    writer = SpoolWriter(tmp_path, "control", durability="process")

    def of(ingester, answers=None):
        stores: Any = SimpleNamespace(ingester=ingester)
        return Mutations(writer, stores, new_id, answers)

    yield of
    await writer.close()


async def late(waiting):
    return not (await asyncio.wait({asyncio.ensure_future(waiting)}, timeout=0.2))[0]


async def test_who_reads_waits_for_what_its_sender_did_not_wait_for(slow):
    store = SlowStore()
    mutations = slow(store)
    assert await mutations.settled() is False
    asked = store.hurried
    assert await mutations.put("reward", {}, soon=True) is False
    assert store.hurried == asked
    reading = asyncio.ensure_future(mutations.settled())
    assert not (await asyncio.wait({reading}, timeout=0.2))[0], "the store does not have it"
    assert store.hurried > asked
    store.take()
    assert await reading is True
    assert await mutations.settled() is False


async def test_who_sends_waits_where_the_store_is_far_behind_or_others_read_it(slow, monkeypatch):
    monkeypatch.setattr(mutation_log, "MOST_BEHIND", 2)
    mutations = slow(SlowStore())
    for _ in range(2):
        assert await mutations.put("reward", {}, soon=True) is False
    assert await late(mutations.put("reward", {}, soon=True))
    assert await late(slow(SlowStore(shared=True)).put("reward", {}, soon=True))


async def test_a_store_that_takes_nothing_keeps_no_reader_waiting_twice(slow):
    async def away():
        return False

    mutations = slow(SlowStore(), away)
    await mutations.put("reward", {}, soon=True)
    assert await mutations.settled() is True, "the database is away, and nobody waits for it"
    assert await mutations.settled() is False
    assert await slow(SlowStore(broken="no room")).put("reward", {}, soon=True) is False
