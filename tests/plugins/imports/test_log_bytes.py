"""Bytes of logs: packed, in other encodings, broken, and too large."""

from __future__ import annotations

import codecs
import gzip
import itertools
import json
import tracemalloc
import zipfile

import pytest
import zstandard
from tests.support.logs import ASK, END, taken, written

from slipstream_chat.report import Report
from slipstream_imports import rows
from slipstream_imports import rows as files
from slipstream_imports.rows import Log, encoding_of


def test_encodings_are_seen():
    assert encoding_of("{}".encode("utf-16-le") + b"  ")[0] == "utf-16-le"
    assert encoding_of("{}".encode("utf-16-be") + b"  ")[0] == "utf-16-be"
    assert encoding_of("\ufeff{}".encode("utf-8")) == ("utf-8", 3)


def test_a_line_without_end_is_told_and_not_held(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_ROW", 2**20)
    monkeypatch.setattr(rows, "MOST_ROW", 2**20)
    path = written(tmp_path, {"messages": [ASK, END]})
    with path.open("ab") as file:
        file.write(b'{"messages": "' + b"x" * 40 * 2**20 + b'"}\n')
    with path.open("a") as file:
        file.write(written(tmp_path, {"messages": [ASK, END]}, name="b.jsonl").read_text())
    tracemalloc.start()
    bodies, report = taken(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(bodies) == 2 and report.refused == [f"{path}:2: the line has more than 1 MiB"]
    assert peak < 12 * 2**20


def test_a_bomb_is_told_and_not_unpacked_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "UNPACK_FREE_BYTES", 2**20)
    path = tmp_path / "bomb.jsonl.gz"
    line = written(tmp_path, {"messages": [ASK, END]}).read_bytes()
    path.write_bytes(gzip.compress(line + b" " * 80 * 2**20 + b"\n" + line))
    bodies, report = taken(path)
    assert len(bodies) == 1 and "unpacks to over 250 times its size" in report.refused[0]


def test_a_file_that_ends_in_its_middle(tmp_path):
    whole = gzip.compress(
        b"".join(b'{"messages": [{"role": "assistant", "content": "%d"}]}\n' % n for n in range(9999))
    )
    path = tmp_path / "half.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    bodies, report = taken(path)
    assert len(bodies) > 1000 and any("the packed file is broken" in line for line in report.refused)


def test_a_zip_holds_one_file(tmp_path):
    line = written(tmp_path, {"messages": [ASK, END]})
    for count in (1, 2):
        path = tmp_path / f"{count}.zip"
        with zipfile.ZipFile(path, "w") as packed:
            for n in range(count):
                packed.write(line, f"{n}.jsonl")
    assert len(taken(tmp_path / "1.zip")[0]) == 1
    (tmp_path / "3.zip").write_bytes((tmp_path / "1.zip").read_bytes()[:-9])
    bodies, report = taken(tmp_path / "2.zip", tmp_path / "3.zip", line)
    assert len(bodies) == 1 and len(report.refused) == 2 and "2 files are packed" in report.refused[0]


def test_a_zst_file_is_read_up_to_where_it_breaks(tmp_path):
    line, path = written(tmp_path, {"messages": [ASK, END]}).read_bytes(), tmp_path / "a.jsonl.zst"
    frame = zstandard.compress(line)
    for end, why in ((b"", None), (frame[:-4], "middle of a frame"), (b"no frame", "Unknown frame")):
        path.write_bytes(frame + frame + end)
        bodies, report = taken(path)
        assert len(bodies) == 2 and [why in text for text in report.refused] == ([True] if why else [])


def test_lines_are_numbered_as_an_editor_numbers_them(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('\n{"a": 1}\n\n{"a": 2}')
    assert [(line.number, line.text) for line in Log(path, Report()).lines()] == [(2, b'{"a": 1}'), (4, b'{"a": 2}')]


WAYS = {
    "utf-8": b"", "utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE, "utf-32-le": codecs.BOM_UTF32_LE,
}  # fmt: skip


@pytest.mark.parametrize("chunk", [1, 7, 2**20])
@pytest.mark.parametrize("pretty", [False, True])
@pytest.mark.parametrize("ways", [*itertools.product(WAYS, repeat=2)], ids="+".join)
@pytest.mark.parametrize("boms", [*itertools.product([False, True], repeat=2)])
def test_a_file_in_two_encodings_is_read_to_its_end(tmp_path, monkeypatch, ways, boms, pretty, chunk):
    """A program appended in its own encoding, with its own mark or none."""
    monkeypatch.setattr(files, "CHUNK_BYTES", chunk)
    row = {"messages": [{**ASK, "content": "ü \U0001f324 \u0a0d\u2028"}, END]}
    text = json.dumps(row, ensure_ascii=False, indent=1 if pretty else None) + "\r\n"
    path = tmp_path / "log.jsonl"
    path.write_bytes(
        b"".join((WAYS[way] if bom else b"") + (text * 3).encode(way) for way, bom in zip(ways, boms, strict=True))
    )
    bodies, report = taken(path)
    assert [b["messages"] for b in bodies] == [row["messages"]] * 6 and report.clean
