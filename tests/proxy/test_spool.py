from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys

import pytest

import slipstream_proxy.log.spool as module
from slipstream_proxy.log.records import Kind
from slipstream_proxy.log.segments import encode, list_segments, read_segment
from slipstream_proxy.log.spool import FLUSH_BYTES, SpoolWriter


@pytest.mark.parametrize("durability", ["power", "process", "none"])
async def test_write_and_read_back(tmp_path, durability):
    spool = SpoolWriter(tmp_path, "data0", durability=durability, segment_bytes=500)
    results = await asyncio.gather(*(spool.put(Kind.MUTATION, {"i": i}, b"q" * i, b"r") for i in range(50)))
    assert all(results)
    for i in range(50, 60):
        assert await spool.put(Kind.CALL, {"i": i})
    await spool.close()
    segments = list_segments(tmp_path)["data0"]
    assert [n for n, _ in segments] == list(range(1, len(segments) + 1)) and len(segments) > 1
    frames = [f for _, path in segments for f in read_segment(path)]
    assert (
        [f.head["i"] for f in frames] == list(range(60))
        and frames[3].request == b"qqq"
        and frames[3].kind is Kind.MUTATION
    )
    assert oct(segments[0][1].stat().st_mode)[-3:] == "600"
    again = SpoolWriter(tmp_path, "data0", durability=durability)
    await again.put(Kind.CALL, {"i": 60})
    await again.close()
    assert list_segments(tmp_path)["data0"][-1][0] == len(segments) + 1


async def test_one_write_a_tick(tmp_path, monkeypatch):
    spool = SpoolWriter(tmp_path, "w", durability="process")
    writes, real = [], os.writev
    monkeypatch.setattr(module, "_writev", lambda fd, pieces: writes.append(len(pieces)) or real(fd, pieces))
    await asyncio.gather(*(spool.put(Kind.CALL, {"i": i}) for i in range(20)))
    monkeypatch.undo()
    assert len(writes) == 1
    await asyncio.gather(*(spool.put(Kind.CALL, {"i": i}, b"q", b"r" * i) for i in range(1000)))
    await spool.close()
    frames = [f for _, path in list_segments(tmp_path)["w"] for f in read_segment(path)]
    assert [(f.head["i"], len(f.reply)) for f in frames[20:]] == [(i, i) for i in range(1000)]


@pytest.mark.parametrize("durability", ["power", "process", "none"])
async def test_many_large_records_are_written_one_after_another(tmp_path, monkeypatch, durability):
    """In between, other calls go on."""
    turns, sizes, writev = [0], {}, os.writev

    def counted(fd, pieces):
        sizes[turns[0]] = sizes.get(turns[0], 0) + sum(map(len, pieces))
        return writev(fd, pieces)

    async def count():
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(module, "_writev", counted)
    spool = SpoolWriter(tmp_path, "w", durability=durability)
    counting = asyncio.create_task(count())
    kept = await asyncio.gather(*(spool.put(Kind.CALL, {"i": i}, b"x" * 400_000) for i in range(20)))
    await spool.close()
    counting.cancel()
    assert all(kept) and max(sizes.values()) < 3 * FLUSH_BYTES
    frames = [f.head["i"] for _, path in list_segments(tmp_path)["w"] for f in read_segment(path)]
    assert frames == list(range(20))


async def test_a_full_disk_costs_the_record_and_not_the_caller(tmp_path, monkeypatch):
    lost = []
    spool = SpoolWriter(tmp_path, "w", durability="process", on_lost=lambda n, e: lost.append((n, e.errno)))  # type: ignore[attr-defined]
    assert await spool.put(Kind.CALL, {"i": 1}, b"x" * 100)
    real = os.write
    room = 20

    def full(fd, data):
        nonlocal room
        if not room:
            raise OSError(28, "No space left on device")
        room -= 10
        return real(fd, data[:10])  # a part of it still fits

    monkeypatch.setattr(module, "_writev", lambda fd, pieces: full(fd, b"".join(pieces)))
    monkeypatch.setattr(os, "write", full)
    assert not await spool.put(Kind.CALL, {"i": 2}, b"y" * 100)
    monkeypatch.undo()
    assert lost == [(1, 28)] and spool.lost == 1
    assert await spool.put(Kind.CALL, {"i": 3})
    await spool.close()
    frames = [f for _, path in list_segments(tmp_path)["w"] for f in read_segment(path)]
    assert [f.head["i"] for f in frames] == [1, 3]


@pytest.mark.parametrize("durability", ["power", "process"])
@pytest.mark.parametrize("part", [0.0, 0.5, 1.0, 2.5, 4.9])
async def test_what_a_reader_may_have_seen_stays_where_it_is(tmp_path, monkeypatch, durability, part):
    """A disk becomes full in the middle of several frames. The reader, in a process of its own, reads in any moment and goes on
    behind what it has: were that cut off, it would begin in the middle of a later frame, and pass by all that follow.
    """
    lost: list[int] = []
    spool = SpoolWriter(tmp_path, "w", durability=durability, on_lost=lambda n, e: lost.append(n))
    assert await spool.put(Kind.CALL, {"i": 0}, b"x" * 3000)
    ((_, path),) = list_segments(tmp_path)["w"]
    before, size = path.stat().st_size, len(encode(Kind.CALL, {"i": 1, "tick": 1.0, "boot": "b"}, b"y" * 3000))
    reached: list[int] = []
    cut = os.ftruncate

    def read_first(fd, length):
        reached.extend(f.end for f in read_segment(path))
        cut(fd, length)

    monkeypatch.setattr(os, "ftruncate", read_first)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (before + round(part * size), hard)
    )  # the kernel writes a part, then refuses
    try:
        puts = [asyncio.create_task(spool.put(Kind.CALL, {"i": i}, b"y" * 3000)) for i in range(1, 6)]
        kept = await asyncio.gather(*puts)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert await spool.put(Kind.CALL, {"i": 6}, b"z" * 100)
    assert await spool.put(Kind.CALL, {"i": 7}, b"z" * 9000)
    await spool.close()
    there = [0, *(i for i, ok in enumerate(kept, 1) if ok), 6, 7]
    assert [f.head["i"] for f in read_segment(path)] == there
    start = max(reached, default=before)
    behind = [f.head["i"] for f in read_segment(path, start)]
    assert behind == there[-len(behind) :] and behind[-2:] == [6, 7]
    assert sum(lost) == spool.lost == kept.count(False) > 0
    assert kept == sorted(kept, reverse=True)


async def test_a_failed_sync_is_told_and_survived(tmp_path, monkeypatch):
    lost = []
    spool = SpoolWriter(tmp_path, "w", durability="power", on_lost=lambda n, e: lost.append(n))

    def broken(fd):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    assert not await spool.put(Kind.CALL, {"i": 1})
    monkeypatch.undo()
    assert lost == [1] and await spool.put(Kind.CALL, {"i": 2})
    await spool.close()
    assert len(list_segments(tmp_path)["w"]) == 2


async def test_a_segment_that_cannot_be_made_takes_no_number(tmp_path, monkeypatch):
    """A number that is passed over looks like a segment that is gone."""
    opened, failing = os.open, [True]

    def open_(path, *args, **kw):
        if failing[0] and str(path).endswith(".seg"):
            raise OSError(30, "Read-only file system")
        return opened(path, *args, **kw)

    monkeypatch.setattr(os, "open", open_)
    writer = SpoolWriter(tmp_path, "w")
    assert [await writer.put(Kind.MUTATION, {"n": n}) for n in range(3)] == [False] * 3
    failing[0] = False
    assert await writer.put(Kind.MUTATION, {"n": 3})
    await writer.close()
    assert [number for number, _ in list_segments(tmp_path)["w"]] == [1]


async def test_half_a_surrogate_pair_in_a_head_costs_no_record(tmp_path):
    writer = SpoolWriter(tmp_path, "w")
    assert await writer.put(Kind.CALL, {"id": "a", "model": "gpt-\ud800", "tags": {"\udfff": ["\ud800", 1, None]}})
    await writer.close()
    ((_, path),) = list_segments(tmp_path)["w"]
    (found,) = read_segment(path)
    assert found.head["model"] == "gpt-?" and found.head["tags"] == {"?": ["?", 1, None]}


async def test_a_head_that_is_no_json_is_lost_and_said(tmp_path):
    lost = []
    spool = SpoolWriter(tmp_path, "w", durability="process", on_lost=lambda n, e: lost.append(n))
    assert not await spool.put(Kind.CALL, {"x": object()})
    assert lost == [1]
    await spool.close()


FULL = """
import asyncio, sys, threading
from pathlib import Path
from slipstream_proxy.control.storage.spool_reader import backlog, gather
from slipstream_proxy.log.records import Kind
from slipstream_proxy.log.segments import list_segments, read_segment
from slipstream_proxy.log.spool import FLUSH_BYTES, SpoolWriter

folder, over, looks = Path(sys.argv[1]), threading.Event(), []

def look():
    while not over.is_set():
        try:
            looks.append(len(gather(folder, {}, 10_000, 2**30, lambda *_: None)) + backlog(folder, {})[0])
        except FileNotFoundError:
            continue

async def main():
    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    writer = SpoolWriter(folder, "data0", durability="process", segment_bytes=2**17)
    kept = {}
    for n in range(3000):
        if await writer.put(Kind.CALL, {"n": n}, b"q" * (n * 7919 % 20000)):
            kept[n] = writer.segment
        elif n % 5 == 0:  # somebody makes room: an ingested segment goes
            number, path = list_segments(folder)["data0"][0]
            if number != writer.segment:
                path.unlink()
                kept = {n: s for n, s in kept.items() if s != number}
    await writer.close()
    over.set()
    for reader in readers:
        reader.join()
    there = [f.head["n"] for _, path in list_segments(folder)["data0"] for f in read_segment(path)]
    assert there == list(kept), (len(there), len(kept))
    print(writer.lost > 10, len(looks) > 10)

asyncio.run(main())
"""


def test_a_full_tmpfs_ends_neither_writer_nor_reader(tmp_path):
    """Kernel and all: records that do not fit are given up and cut off while two threads read the segments."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no right to mount a tmpfs")
    try:
        command = [sys.executable, "-c", FULL, tmp_path]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True"]), done.stderr
