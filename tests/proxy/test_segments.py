"""Segment files: what is whole is read, what is not is cut off."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_proxy.log import segments
from slipstream_proxy.log.records import Kind
from slipstream_proxy.log.segments import common_head, encode, frame, read_segment

RECORDS = st.lists(
    st.tuples(
        st.dictionaries(st.text(max_size=5), st.integers(0, 9), max_size=2),
        st.binary(max_size=60),
        st.binary(max_size=60),
    ),
    max_size=6,
)


def write(path: Path, records) -> list[int]:
    ends, data = [], b""
    for head, request, reply in records:
        data += encode(Kind.CALL, head, request, reply)
        ends.append(len(data))
    path.write_bytes(data)
    return ends


def check(path: Path, records, whole: int) -> None:
    reader = read_segment(path)
    found = list(reader)
    assert [(f.request, f.reply) for f in found] == [(q, r) for _, q, r in records[:whole]]
    for one, (head, request, _) in zip(found, records, strict=False):
        assert one.head == {**head, "request_bytes": len(request)}


@settings(max_examples=100, deadline=None)
@given(RECORDS, st.data())
def test_torn_zeroed_and_flipped_tails_are_cut_at_the_last_good_frame(records, data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w-00000001.seg"
        ends = write(path, records)
        check(path, records, len(records))
        assert read_segment(path).torn is None
        text = path.read_bytes()
        if not text:
            return
        at = data.draw(st.integers(0, len(text) - 1))
        whole = sum(e <= at for e in ends)
        path.write_bytes(text[:at])
        reader = read_segment(path)
        assert len(list(reader)) == whole and reader.offset == (ends[whole - 1] if whole else 0)
        assert reader.torn == (None if reader.offset == at else "short")
        path.write_bytes(text[:at] + bytes(len(text) - at + 50))
        reader = read_segment(path)
        assert len(list(reader)) in (whole, whole + (not any(text[at : ends[whole]]))) and reader.torn
        flipped = bytearray(text)
        flipped[at] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(bytes(flipped))
        reader = read_segment(path)
        assert len(list(reader)) == whole and reader.torn


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_rubbish_never_raises(rubbish):
    with tempfile.NamedTemporaryFile() as file:
        file.write(rubbish)
        file.flush()
        list(read_segment(Path(file.name)))


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.text(min_size=1, max_size=5), st.integers(0, 9), min_size=1, max_size=3),
    st.dictionaries(st.text(min_size=6, max_size=9), st.integers(0, 9), max_size=3),
)
def test_what_heads_have_in_common_is_read_with_the_rest(common, own):
    with tempfile.NamedTemporaryFile() as file:
        head = b"%b,%b" % (common_head(common), orjson.dumps({**own, "request_bytes": 1})[1:])
        file.write(b"".join(frame(Kind.CALL, head, b"q", b"r")))
        file.flush()
        (found,) = read_segment(Path(file.name))
    assert found.head == {**common, **own, "request_bytes": 1} and (found.request, found.reply) == (b"q", b"r")


def test_a_large_frame_is_checked_and_its_body_left_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "LARGE_PAYLOAD_BYTES", 1000)
    path = tmp_path / "w-00000001.seg"
    small, large = encode(Kind.CALL, {"n": 1}, b"q", b"r"), encode(Kind.CALL, {"n": 2}, b"Q" * 600, b"R" * 500)
    path.write_bytes(small + large + small)
    one, two, three = read_segment(path)
    assert (one.place, one.reply, three.reply, three.head["n"]) == (None, b"r", b"r", 1)
    place = two.place
    assert place is not None and (two.request, two.reply, two.head["n"]) == (b"", b"", 2)
    text = path.read_bytes()
    assert text[place.offset : place.offset + place.request] == b"Q" * 600
    assert text[place.offset + place.request : place.offset + place.request + place.reply] == b"R" * 500
    assert two.end == len(small + large)
    path.write_bytes((small + large + small).replace(b"RR", b"RS", 1))
    reader = read_segment(path)
    assert len(list(reader)) == 1 and reader.torn == "bad"


CUT_OFF = """
import os, sys
from pathlib import Path
from slipstream_proxy.log.records import Kind
from slipstream_proxy.log.segments import encode, read_segment

path = Path(sys.argv[1])
whole = encode(Kind.CALL, {"n": 1}, b"q", bytes(4096 - len(encode(Kind.CALL, {"n": 1}, b"q"))))
assert len(whole) == 4096
path.write_bytes(whole + whole[:2000] + bytes(30000))
reader = read_segment(path)
os.truncate(path, 4096)
print(len(list(reader)), reader.torn, reader.offset)
"""


def test_half_a_frame_that_is_cut_off_while_it_is_read_ends_no_process(tmp_path):
    """On a full disk a writer cuts its half frame off. Of a memory map, the page behind the cut would be a SIGBUS."""
    command = [sys.executable, "-c", CUT_OFF, tmp_path / "w-00000001.seg"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["1", "short", "4096"]), done.stderr
