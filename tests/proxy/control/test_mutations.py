from __future__ import annotations

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
