"""Rows of lists, of lines, of values over several lines, and of frames."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.logs import written

from slipstream_chat.report import Report
from slipstream_imports import rows
from slipstream_imports.rows import read_rows

ROW = {"messages": [{"role": "user", "content": "ü ☔"}]}


def values(path, report=None):
    return [row.value for row in read_rows(path, report or Report())]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("told", [[ROW, ROW], {"data": [ROW, ROW]}, {"meta": {}, "traces": [ROW, ROW]}])
def test_frames_and_lists(tmp_path, told, indent):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(told, indent=indent))
    assert values(path) == [ROW, ROW]


def test_values_that_follow_each_other(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("\n".join(json.dumps(ROW, indent=1) for _ in range(3)))
    assert values(path) == [ROW] * 3


def test_a_list_of_messages_is_one_conversation(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ROW["messages"] * 2))
    assert values(path) == [{"messages": ROW["messages"] * 2}]
    assert values(written(tmp_path, ROW["messages"], ROW["messages"])) == [ROW, ROW]


def test_deep_brackets_in_a_list_are_told_and_skipped(tmp_path):
    path = tmp_path / "a.json"
    deep = '{"a": "]", "b": ' + "[" * 200_000 + "]" * 200_000 + "}"
    path.write_text("[" + ",\n".join([json.dumps(ROW), deep, json.dumps(ROW)]) + "]")
    report = Report()
    assert values(path, report) == [ROW, ROW]
    assert report.refused == [f"{path}:2: its brackets are nested too deeply"]


def test_a_list_larger_than_a_chunk_and_its_line_numbers(tmp_path):
    path = tmp_path / "a.json"
    rows = [{"messages": [{"role": "user", "content": "ü" * 40_000}], "n": n} for n in range(60)]
    path.write_text("[\n" + ",\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + "\n]")
    found = list(read_rows(path, Report()))
    assert [row.value["n"] for row in found] == list(range(60))
    assert found[-1].where == f"{path}:61"


def test_what_is_broken_in_a_list_is_told_with_its_line(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("[\n" + json.dumps(ROW) + ",\n{oops}\n, " + "1" * 100 + "]")
    report = Report()
    assert values(path, report) == [ROW]
    assert report.refused[0].startswith(f"{path}:3: not JSON")
    path.write_text("[\n" + json.dumps(ROW) + ',\n{"a": oops, "b": "}\\"]"},\n' + json.dumps(ROW) + ', {"a": "]')
    report = Report()
    assert values(path, report) == [ROW, ROW]
    assert [line.endswith("what follows is not read") for line in report.refused] == [False, True]


def test_a_long_value_of_a_list_is_told_and_not_held(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "MOST_ROW", 2**20)
    path, report = tmp_path / "a.json", Report()
    path.write_text("[" + json.dumps(ROW) + ',\n["' + "x" * 3 * 2**20 + '\\"]"],' + json.dumps(ROW) + "]")
    assert values(path, report) == [ROW, ROW]
    assert report.refused == [f"{path}:2: a value of more than 1 MiB"]


def test_parquet_rows_and_what_is_no_parquet(tmp_path):
    pq.write_table(pa.table({"messages": [json.dumps(ROW["messages"])] * 4}), tmp_path / "a.parquet")
    assert [row.share for row in read_rows(tmp_path / "a.parquet", Report())] == [0.25, 0.5, 0.75, 1.0]
    (tmp_path / "b.parquet").write_bytes(b"PAR1 no")
    report = Report()
    assert values(tmp_path / "b.parquet", report) == [] and "not Parquet" in report.refused[0]


def test_an_empty_file_has_no_rows(tmp_path):
    (tmp_path / "a.json").write_text("\n ")
    assert values(tmp_path / "a.json") == []


def test_a_table_as_pandas_writes_it(tmp_path):
    path = tmp_path / "log.json"
    path.write_text('{"a": {"0": 1, "1": 2}, "b": {"0": "x", "1": null}}')
    assert values(path) == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
