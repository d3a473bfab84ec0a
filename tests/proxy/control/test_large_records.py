"""Records that would take too much memory to be parsed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.plane import until

from slipstream_proxy.control.storage import spool_reader
from slipstream_proxy.control.storage.spool_reader import LargeRecords, too_large
from slipstream_proxy.log import segments
from slipstream_proxy.log.ids import new_id
from slipstream_proxy.log.records import Kind
from slipstream_proxy.log.segments import encode, read_segment


@pytest.fixture
def small_limit(monkeypatch):
    """A frame above 64 KiB is large."""
    monkeypatch.setattr(segments, "LARGE_PAYLOAD_BYTES", 65536)


def kept(plane) -> list[Path]:
    return sorted((plane.config.root / "large").glob("*"))


async def test_the_store_has_the_head_and_a_file_has_the_raw_reply(plane, small_limit):
    text = "lorem ipsum " * 10_000
    call = await plane.call("big", reply=text)
    await plane.call("small")
    await plane.seen("small")
    (found,) = (await plane.seen("big"))["call_list"]
    assert (found["trainable"], found["untrainable_reason"], found["status"]) == (False, "too large", 200)
    assert (found["messages"], found["reply"]) == ([], [])
    assert f"large/{call}" in found["error"]
    (folder,) = kept(plane)
    assert json.loads((folder / "reply").read_bytes())["choices"][0]["message"]["content"] == text
    assert json.loads((folder / "request").read_bytes())["messages"] == [{"role": "user", "content": "hello"}]
    assert json.loads((folder / "head.json").read_bytes())["id"] == folder.name == call
    assert plane.deps.ingester.stats.unreadable == 1


async def test_a_bomb_is_not_parsed(plane, monkeypatch):
    """Three bytes of JSON that become seventy in Python."""
    monkeypatch.setattr(spool_reader, "MAX_PARSE_BYTES", 64 * 2**20)
    before = await plane.call("bomb", request={"metadata": [{}] * 700_000})
    await plane.seen("bomb")
    assert [p.name for p in kept(plane)] == [before]


async def test_only_a_stream_of_one_event_is_a_bomb():
    event = b'data: {"choices":[' + b"{}," * 1000 + b"{}]}\n\n"
    for stream, reply, large in (
        (True, event * 5000, False),
        (False, event * 5000, True),
        (True, event.replace(b"{},", b"{}," * 5000, 1), False),
        (True, event.replace(b"{},", b"{}," * 4_000_000, 1), True),
    ):
        frame = next(_frames([encode(Kind.CALL, {"id": "c", "stream": stream}, b"{}", reply)]))
        assert too_large(frame) == large


async def test_a_reply_with_a_quarter_of_a_million_log_probabilities_is_parsed():
    one = '{"token":" the","logprob":-0.12345678,"bytes":[32,116,104,101],"top_logprobs":[]},'
    reply = b'{"choices":[{"logprobs":{"content":[' + one.encode() * 250_000 + b"]}}]}"
    frame = next(_frames([encode(Kind.CALL, {"id": "c"}, b"{}", reply)]))
    assert len(reply) > 20_000_000 and not too_large(frame)


def _frames(frames: list[bytes]):
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(frames))
        file.flush()
        yield from read_segment(Path(file.name))


async def test_what_is_forgotten_goes_from_there_too(plane, small_limit):
    for episode in ("gone", "kept"):
        await plane.call(episode, reply=f"SECRET-{episode} " * 10_000)
        await plane.seen(episode)
    assert len(kept(plane)) == 2
    assert (await plane.ask("DELETE", "/episodes/gone"))[0] == 200
    await plane.call("gone", reply="SECRET-gone late " * 10_000)
    await plane.call("after")
    await plane.seen("after")
    await plane.deps.forgetter.erase()
    files = [p for p in plane.config.root.rglob("*") if p.is_file()]
    late = [p.name for p in files if b"SECRET-gone" in p.read_bytes() and p.suffix != ".seg"]
    assert late == []
    assert [json.loads((p / "head.json").read_bytes())["episode"] for p in kept(plane)] == ["kept"]


async def test_a_blank_of_a_large_record_is_read_over(make_plane, small_limit):
    plane = await make_plane()
    await plane.call("gone", reply="SECRET-gone " * 10_000)
    await plane.call("kept")
    await plane.seen("kept")
    await plane.ask("DELETE", "/episodes/gone")
    await plane.deps.forgetter.erase()
    assert b"SECRET-gone" not in b"".join(p.read_bytes() for p in plane.config.spool_dir.glob("*.seg"))
    await plane.stop()
    for file in plane.config.root.glob("slipstream.duckdb*"):
        file.unlink()
    plane.control = type(plane.control)(plane.config)
    await plane.start()
    await plane.seen("kept")
    assert plane.deps.ingester.stats.torn == 0 and kept(plane) == []


async def test_it_goes_with_its_day(make_plane, small_limit):
    plane = await make_plane(store={"keep_days": 2})
    old = await plane.call("old", reply="x" * 100_000, at=plane.deps.now() - 3 * 86400)
    new = await plane.call("new", reply="x" * 100_000)
    await plane.seen("new")
    plane.control.sweeper.next_retention = 0.0
    await until(lambda: [p.name for p in kept(plane)] == [new])
    assert old != new


async def test_without_room_for_the_file_the_record_stays_in_the_spool(plane, small_limit, monkeypatch):
    full = True
    keep = LargeRecords.keep

    def maybe(self, frame):
        if full:
            raise OSError("no space left on device")
        return keep(self, frame)

    monkeypatch.setattr(LargeRecords, "keep", maybe)
    call = await plane.call("big", reply="x" * 100_000)
    await until(lambda: plane.deps.ingester.stats.broken)
    full = False
    await plane.seen("big")
    assert [p.name for p in kept(plane)] == [call]


def test_half_a_copy_is_written_again(tmp_path):
    (tmp_path / "w-00000001.seg").write_bytes(encode(Kind.CALL, {"id": "c1", "at": 1.0}, b"question", b"answer"))
    (frame,) = read_segment(tmp_path / "w-00000001.seg")
    large = LargeRecords(tmp_path / "large")
    (tmp_path / "large/.c1.part").mkdir(parents=True)
    (tmp_path / "large/.c1.part/request").write_bytes(b"ques")
    assert large.keep(frame) == large.keep(frame) == tmp_path / "large/c1"
    assert (tmp_path / "large/c1/request").read_bytes() == b"question"
    assert (tmp_path / "large/c1/reply").read_bytes() == b"answer"
    assert (large.prune(1.0), large.prune(1.5)) == (0, 1)


INGEST = """
import asyncio, sys
from pathlib import Path
from slipstream_proxy.control.storage.ingester import Ingester
from slipstream_proxy.store import open_store
from slipstream_proxy.store.values import Rules

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) // 1024

async def main():
    folder = Path(sys.argv[1])
    ingester = Ingester(folder / "spool", open_store(f"duckdb://{folder}/s.duckdb", Rules()))
    await ingester.load_positions()
    before = peak()
    while await ingester.round():
        pass
    print(peak() - before, ingester.stats.records, ingester.stats.unreadable)

asyncio.run(main())
"""


@pytest.mark.slow
def test_no_reply_takes_the_memory(tmp_path):
    """The largest that the proxy takes, twice, and the largest that is parsed. Before, one took four gigabytes."""
    content = (b"lorem ipsum " * (255 * 2**20 // 12), b"lorem ipsum " * (60 * 2**20 // 12))
    head = {
        "key": "-", "task": None, "split": "train", "tags": {}, "model": "m", "trained": "m", "adapter": "m", "arm": "live",
        "pin": "control", "dialect": "chat", "stream": False, "at": 1e9, "seconds": 1.0, "first_byte": 0.1, "status": 200,
        "outcome": "ok", "upstream": "u",
    }  # fmt: skip
    (tmp_path / "spool").mkdir()
    for n, text in enumerate((content[0], content[0], content[1])):
        reply = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"' + text + b'"}}]}'
        data = encode(Kind.CALL, {**head, "id": new_id(), "episode": f"e{n}"}, b'{"messages":[]}', reply)
        (tmp_path / "spool" / f"data{n}-00000001.seg").write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", INGEST, tmp_path], check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    grown, records, unreadable = map(int, done.stdout.split())
    assert (records, unreadable) == (3, 2)
    assert grown < 640, f"{grown} MiB"
