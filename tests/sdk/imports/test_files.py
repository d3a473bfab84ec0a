"""Bytes of logs: packed, in other encodings, broken, and too large."""

from __future__ import annotations

import gzip
import tracemalloc
import zipfile

import pytest
from tests.support.logs import ASK, END, taken, written

from slipstream.errors import SlipstreamError
from slipstream.imports import rows
from slipstream.imports import rows as files
from slipstream.imports.report import Report
from slipstream.imports.rows import Log, encoding_of


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
    monkeypatch.setattr(files, "FREE", 2**20)
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
    with pytest.raises(SlipstreamError, match="2 files are packed"):
        taken(tmp_path / "2.zip")


def test_lines_are_numbered_as_an_editor_numbers_them(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('\n{"a": 1}\n\n{"a": 2}')
    assert [(line.number, line.text) for line in Log(path, Report()).lines()] == [(2, b'{"a": 1}'), (4, b'{"a": 2}')]
