from __future__ import annotations

import asyncio
import json

import duckdb
import psycopg
import pytest
from tests.support.plane import API, until

from slipstream.shared.backoff import rest
from slipstream_proxy.control.api.http import BEGUN_HEADER
from slipstream_proxy.control.storage import ingester as ingest
from slipstream_proxy.control.storage.ingester import of_a_record
from slipstream_proxy.log.ids import new_id
from slipstream_proxy.log.records import Kind
from slipstream_proxy.log.segments import encode, list_segments
from slipstream_proxy.log.spool import SpoolWriter
from slipstream_proxy.store.tables.driver import StoreError


async def test_each_record_once_over_restarts(make_plane):
    plane = await make_plane()
    for i in range(30):
        await plane.call(f"e{i}")
        if i % 10 == 5:
            await plane.again()
    await plane.seen("e29")
    await until(lambda: _calls(plane, 30))
    await plane.again()
    assert (await plane.ask("GET", "/status"))[1]["calls"] == 30


async def _calls(plane, count: int) -> bool:
    return (await plane.ask("GET", "/status"))[1]["calls"] == count


async def test_a_call_that_cannot_be_parsed_is_kept_without_its_text(plane):
    await plane.call("odd", dialect="nothing-we-know")
    await plane.call("fine")
    await plane.seen("fine")
    odd = await plane.seen("odd")
    assert (odd["call_list"][0]["trainable"], odd["call_list"][0]["messages"]) == (False, [])
    assert plane.deps.ingester.stats.unreadable == 1


@pytest.mark.parametrize(
    "answer, counts",
    [
        ({"prompt_token_ids": None, "usage": {"prompt_tokens": 2**31, "completion_tokens": 10**30}}, [0, 2]),
        ({"prompt_token_ids": [2**31], "usage": {"prompt_tokens": 7, "completion_tokens": -1}}, [7, 2]),
        ({"prompt_token_ids": ["a"], "usage": None}, [0, 2]),
    ],
)
async def test_a_count_that_is_none_is_left_out_and_the_call_kept(plane, answer, counts):
    await plane.call("w", answer=answer, reply="said")
    (call,) = (await plane.seen("w"))["call_list"]
    assert [call["prompt_tokens"], call["completion_tokens"]] == counts
    assert (call["reply"][0]["content"], call["trainable"]) == ("said", False)
    assert plane.deps.ingester.stats.skipped == 0


async def test_a_record_that_is_none_stops_nothing(plane):
    assert await plane.writer.put(Kind.CALL, {"what": "is this"})
    assert await plane.writer.put(
        Kind.MUTATION, {"id": new_id(), "op": "reward", "at": 1.0, "data": {"nonsense": True}}
    )
    await plane.call("after")
    assert (await plane.seen("after"))["calls"] == 1
    await until(lambda: plane.deps.ingester.stats.skipped >= 1)


async def test_a_torn_tail_is_passed_by_once_its_writer_is_back(make_plane):
    plane = await make_plane()
    await plane.call("before")
    await plane.seen("before")
    path = list_segments(plane.config.spool_dir)["data0"][-1][1]
    with path.open("ab") as file:
        file.write(b"\x40\0\0\0half a frame")
    await plane.writer.close()
    plane.writer = SpoolWriter(plane.config.spool_dir, "data0", durability="process")
    await plane.call("after")
    await plane.seen("after")
    assert plane.deps.ingester.stats.torn == 1


async def test_segments_that_are_in_the_snapshot_go(make_plane):
    plane = await make_plane(proxy={"segment_bytes": 4096})
    for i in range(20):
        await plane.call(f"e{i}", text="x" * 500)
    await until(lambda: _calls(plane, 20))
    before = len(list_segments(plane.config.spool_dir)["data0"])
    assert before > 2
    assert plane.deps.ingester.tidy() >= before - 1
    assert len(list_segments(plane.config.spool_dir)["data0"]) == 1
    await plane.call("later")
    await plane.seen("later")
    await plane.again()
    assert (await plane.ask("GET", "/status"))[1]["calls"] == 21


async def test_the_store_is_filled_again_from_the_spool(make_plane):
    """A file that cannot be opened is set aside: calls, rewards and the adapters' states come back."""
    plane = await make_plane()
    await plane.call("e1")
    await plane.seen("e1")
    await plane.ask("POST", "/episodes/e1/rewards", {"value": 0.25})
    await plane.stop()
    file = plane.config.root / "slipstream.duckdb"
    file.write_bytes(b"no database at all" * 1000)
    for wal in plane.config.root.glob("*.wal"):
        wal.unlink()
    plane.control = type(plane.control)(plane.config)
    await plane.start()
    assert (await plane.seen("e1"))["reward"] == 0.25


async def test_a_store_that_takes_nothing_is_waited_for(plane, monkeypatch):
    broken = True
    real = plane.deps.store.ingest

    def ingest(items, positions):
        if broken:
            raise OSError("disk full")
        real(items, positions)

    monkeypatch.setattr(plane.deps.store, "ingest", ingest)
    await plane.call("e1")
    await until(lambda: plane.deps.ingester.stats.broken)
    assert (await plane.ask("POST", "/episodes/e1/rewards", {"value": 1.0}))[0] == 200
    assert "disk full" in json.dumps((await plane.ask("GET", "/status"))[1]["waiting"])
    broken = False
    assert (await plane.seen("e1"))["id"] == "e1"
    await until(lambda: plane.deps.ingester.stats.broken is None)


def test_whose_fault_it_is():
    for fault in (OSError("x"), duckdb.IOException("x"), duckdb.TransactionException("x"), duckdb.FatalException("x"),
                  psycopg.OperationalError("x"), psycopg.errors.DiskFull("x"), StoreError("x")):  # fmt: skip
        assert not of_a_record(fault), fault
    for refusal in (ValueError("x"), KeyError("x"), duckdb.ConversionException("x"), duckdb.OutOfMemoryException("x"), psycopg.DataError("x")):  # fmt: skip
        assert of_a_record(refusal), refusal


async def test_a_full_disk_skips_no_record(plane, monkeypatch):
    """A commit that fails and a smaller one that goes through, as on a disk with little room: nothing is passed over or kept without its text."""
    full = True
    real = plane.deps.store.ingest

    def ingest(items, positions):
        if full and items:
            raise duckdb.TransactionException("Failed to commit: No space left on device")
        real(items, positions)

    monkeypatch.setattr(plane.deps.store, "ingest", ingest)
    await plane.call("e1")
    await plane.call("e2")
    await until(lambda: plane.deps.ingester.stats.broken)
    full = False
    for episode in ("e1", "e2"):
        assert (await plane.seen(episode))["call_list"][0]["messages"]
    assert (plane.deps.ingester.stats.skipped, plane.deps.ingester.stats.unreadable) == (0, 0)


async def test_a_database_that_failed_is_asked_where_it_stands_until_it_says(plane, monkeypatch):
    """PostgreSQL that crashes with ``synchronous_commit = off`` has lost what it had committed."""
    store, down, said = plane.deps.store, True, []

    def ingest(items, positions, real=store.ingest):
        if down:
            raise OSError("in recovery mode")
        real(items, positions)

    def positions(real=store.positions):
        if down:
            raise OSError("in recovery mode")
        said.append(real())
        return said[-1]

    await plane.call("e1")
    await plane.seen("e1")
    monkeypatch.setattr(store, "ingest", ingest)
    monkeypatch.setattr(store, "positions", positions)
    await plane.call("e2")
    await until(lambda: plane.deps.ingester.stats.broken)
    down = False
    assert (await plane.seen("e2"))["id"] == "e2"
    assert len(said) == 1


async def test_at_rest_the_files_are_looked_at_and_not_read(plane, monkeypatch):
    await plane.call("e1")
    await plane.seen("e1")
    ingester, reads = plane.deps.ingester, []
    read = ingester._read
    monkeypatch.setattr(ingester, "_read", lambda: reads.append(1) or read())
    await asyncio.sleep(0.3)  # the round that finds nothing
    reads.clear()
    await asyncio.sleep(1.0)
    assert reads == []
    await plane.call("e2")  # of another process, which wakes nobody here
    await plane.seen("e2")
    assert reads


async def test_a_call_after_a_long_rest_is_found_at_the_next_look(plane, monkeypatch):
    """Counted in looks and in the pauses between them, so that it says the same on a busy machine."""
    ingester, pauses, found = plane.deps.ingester, [], []

    async def counted(seconds, wake):
        if wake is ingester._wake:
            pauses.append(seconds)
        return await rest(seconds, wake)

    read = ingester._read
    monkeypatch.setattr(ingest, "rest", counted)
    monkeypatch.setattr(ingester, "_read", lambda: found.append(len(pauses)) or read())
    await until(lambda: pauses.count(ingest.IDLE_POLL_S) > 3)
    assert pauses == sorted(pauses), "less and less often"
    assert sum(pauses[: pauses.index(ingest.IDLE_POLL_S)]) < 2.5
    found.clear()
    await plane.call("late")
    written = len(pauses)
    await plane.seen("late")
    assert found[0] <= written + 1
    assert max(pauses) == ingest.IDLE_POLL_S == 0.25, (
        "so what somebody asks for waits no longer than a quarter of a second"
    )


async def test_records_gather_until_somebody_asks(plane, monkeypatch):
    """Of what nobody waits for, many go in one transaction; who looks at an episode or a reward waits for no more."""
    monkeypatch.setattr(ingest, "GATHERING_S", 30.0)
    store, rounds = plane.deps.store, []
    taken = store.ingest
    monkeypatch.setattr(store, "ingest", lambda items, at: rounds.append(len(items)) or taken(items, at))

    async def run(name: str, reward: float) -> None:
        """As a worker sends it, which knows that the run has begun."""
        await plane.call(name)
        headers = plane.as_("-", None) | {BEGUN_HEADER: "1"}
        url = f"{API}/episodes/{name}/rewards"
        async with plane.client.post(url, json={"value": reward}, headers=headers) as answer:
            assert answer.status == 200, await answer.text()

    for n in range(20):
        await run(f"e{n}", n / 20)
        await asyncio.sleep(0.02)
    assert rounds == []
    async with asyncio.timeout(10):
        assert (await plane.ask("GET", "/episodes/e19"))[1]["reward"] == 0.95
        assert rounds == [40]
        await run("e20", 0.5)
        found = (await plane.ask("GET", "/episodes?limit=1"))[1]["episodes"]
        assert [(e["id"], e["reward"]) for e in found] == [("e20", 0.5)]
    assert sum(rounds) == 42


async def test_a_record_whose_end_comes_later_is_read_when_it_is_there(plane):
    await plane.call("e1")
    await plane.seen("e1")
    data = encode(Kind.MUTATION, {"id": new_id(), "op": "reward", "at": 1.0, "data": {
        "key": "-", "episode": "e1", "reward": {"value": 0.25}}})  # fmt: skip
    path = plane.config.spool_dir / "data7-00000001.seg"
    for part in (data[:9], data[9:-3]):
        with path.open("ab") as file:
            file.write(part)
        await asyncio.sleep(0.3)
        assert (await plane.ask("GET", "/episodes/e1"))[1]["rewards"] == []
    with path.open("ab") as file:
        file.write(data[-3:])
    await until(lambda: _rewarded(plane))


async def _rewarded(plane) -> bool:
    return bool((await plane.ask("GET", "/episodes/e1"))[1]["rewards"])


async def test_a_token_that_the_model_does_not_have_is_not_trained_on(make_plane, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 5}}))
    plane = await make_plane(engine={"model": str(tmp_path / "model")})
    await plane.call("above")  # its ids are 4 and 5
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}, "token_ids": [4]}
    choice["logprobs"] = {"content": [{"token": "h", "logprob": -0.5}]}
    await plane.call("within", answer={"choices": [choice]})
    found = {name: (await plane.seen(name))["call_list"][0]["untrainable_reason"] for name in ("above", "within")}
    assert found == {"above": "a token id above the vocabulary", "within": None}
