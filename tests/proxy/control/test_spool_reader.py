from __future__ import annotations

from slipstream_proxy.control.storage import spool_reader
from slipstream_proxy.control.storage.spool_reader import gather, parse, read_writer, stand_of
from slipstream_proxy.log.records import Kind
from slipstream_proxy.log.segments import encode, list_segments
from slipstream_proxy.store.values import Position


def test_a_writer_is_read_from_where_it_stands_over_its_segments(tmp_path):
    frames = [encode(Kind.MUTATION, {"id": f"m{i}", "op": "done", "at": float(i), "data": {}}) for i in range(4)]
    (tmp_path / "data0-00000001.seg").write_bytes(frames[0] + frames[1] + frames[2][:-3])
    (tmp_path / "data0-00000002.seg").write_bytes(frames[3])
    torn = []
    found = list(read_writer("data0", list_segments(tmp_path)["data0"], None, lambda *a: torn.append(a)))
    assert [parse(r)[0].id for r in found] == ["m0", "m1", "m3"]  # type: ignore[union-attr]
    assert [(t[1], t[3]) for t in torn] == [(1, "short")]
    again = list(read_writer("data0", list_segments(tmp_path)["data0"], found[0].position, lambda *a: None))
    assert [parse(r)[0].id for r in again] == ["m1", "m3"]  # type: ignore[union-attr]
    end = Position(2, len(frames[3]))
    assert list(read_writer("data0", list_segments(tmp_path)["data0"], end, lambda *a: None)) == []


def test_a_tail_that_is_being_written_is_waited_for(tmp_path):
    frame = encode(Kind.MUTATION, {"id": "m", "op": "done", "at": 0.0, "data": {}})
    path = tmp_path / "data0-00000001.seg"
    path.write_bytes(frame[:-1])
    torn = []
    assert list(read_writer("data0", [(1, path)], None, lambda *a: torn.append(a))) == []
    path.write_bytes(frame)
    assert len(list(read_writer("data0", [(1, path)], None, lambda *a: torn.append(a)))) == 1
    assert torn == []


def write(folder, writer: str, *ats: float) -> list[Position]:
    """A segment of records that happened then. → Where each of them ends."""
    found, data = [], b""
    for at in ats:
        data += encode(Kind.MUTATION, {"id": f"{at}", "op": "done", "at": at, "data": {}})
        found.append(Position(1, len(data)))
    (folder / f"{writer}-00000001.seg").write_bytes(data)
    return found


def test_no_record_is_read_before_one_that_its_client_had_seen(tmp_path, monkeypatch):
    """Written at 1 and 2 by the one and at 3 by the other, where the first one's end was looked at before 2 was there."""
    first, second = write(tmp_path, "data0", 1.0, 2.0, 4.0), write(tmp_path, "data1", 3.0)
    told = iter([{"data0": first[0], "data1": second[0]}])
    look = spool_reader.ends
    monkeypatch.setattr(spool_reader, "ends", lambda found: next(told, None) or look(found))
    found = gather(tmp_path, {}, 100, 2**20, lambda *_: None)
    assert [r.at for r in found] == [1.0, 2.0, 3.0]  # 4 came later: the next batch's
    positions = {r.writer: r.position for r in found}
    assert [r.at for r in gather(tmp_path, positions, 100, 2**20, lambda *_: None)] == [4.0]


def test_a_clock_that_is_set_changes_no_order(tmp_path):
    """An hour ahead, then right again; and a machine that was started anew, whose ticks begin at 0."""

    def record(name: str, at: float, tick: float, boot: str = "a") -> bytes:
        head = {"id": name, "op": "done", "at": at, "data": {}, "tick": tick, "boot": boot}
        return encode(Kind.MUTATION, head)

    (tmp_path / "data0-00000001.seg").write_bytes(record("m1", 5000.0, 100.0) + record("m3", 5002.0, 102.0))
    (tmp_path / "data1-00000001.seg").write_bytes(record("m2", 8601.0, 101.0) + record("m4", 8603.0, 103.0))
    (tmp_path / "data0-00000002.seg").write_bytes(record("m5", 5200.0, 7.0, "b"))
    assert [parse(r)[0].id for r in gather(tmp_path, {}, 100, 2**20, lambda *_: None)] == ["m1", "m2", "m3", "m4", "m5"]  # type: ignore[union-attr]


def test_batches_end_where_they_are_told_to(tmp_path):
    write(tmp_path, "data0", *[float(i) for i in range(0, 40, 2)])
    write(tmp_path, "control", *[float(i) for i in range(1, 40, 2)])
    positions: dict[str, Position] = {}
    seen = []
    while found := gather(tmp_path, positions, 7, 2**20, lambda *_: None):
        assert len(found) <= 8
        seen += [r.at for r in found]
        positions |= {r.writer: r.position for r in found}
    assert seen == [float(i) for i in range(40)]
    assert gather(tmp_path / "nowhere", {}, 7, 2**20, lambda *_: None) == []


def test_what_stands_in_the_spool_is_another_after_each_write(tmp_path):
    assert stand_of(tmp_path / "none") == stand_of(tmp_path) == frozenset()
    seen = [stand_of(tmp_path)]
    path = tmp_path / "data0-00000001.seg"
    for part in (b"", b"abc", b"d"):
        with path.open("ab") as file:
            file.write(part)
        seen.append(stand_of(tmp_path))
    assert stand_of(tmp_path) == seen[-1]
    (tmp_path / "data0-00000002.seg").touch()
    path.unlink()
    seen.append(stand_of(tmp_path))
    assert len(set(seen)) == len(seen)
