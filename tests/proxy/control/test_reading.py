from __future__ import annotations

from slipstream_proxy.control.reading import parse, read_writer
from slipstream_proxy.records import Kind
from slipstream_proxy.spool import encode, list_segments
from slipstream_proxy.store.protocol import Position


def test_a_writer_is_read_from_where_it_stands_over_its_segments(tmp_path):
    frames = [encode(Kind.MUTATION, {"id": f"m{i}", "op": "done", "at": float(i), "data": {}}) for i in range(4)]
    (tmp_path / "data0-00000001.seg").write_bytes(frames[0] + frames[1] + frames[2][:-3])
    (tmp_path / "data0-00000002.seg").write_bytes(frames[3])
    torn = []
    found = list(read_writer("data0", list_segments(tmp_path)["data0"], None, lambda *a: torn.append(a)))
    assert [parse(r)[0].id for r in found] == ["m0", "m1", "m3"]
    assert [(t[1], t[3]) for t in torn] == [(1, "short")]
    again = list(read_writer("data0", list_segments(tmp_path)["data0"], found[0].position, lambda *a: None))
    assert [parse(r)[0].id for r in again] == ["m1", "m3"]
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
