"""Tables that DuckDB wrote: every type that it has stands where a reward, a time or a tag may stand."""

from __future__ import annotations

import duckdb
import pytest
from tests.support.logs import taken

TALK = "[{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'a'}] AS messages"


def table(folder, columns):
    path = folder / "log.parquet"
    duckdb.sql(f"SELECT {TALK}, {columns} FROM range(2) t(i)").write_parquet(str(path))
    return taken(path)


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("0.5::DECIMAL(6, 3)", 0.5), ("2::DECIMAL(38, 0)", 2.0), ("1::HUGEINT", 1.0), ("1::UTINYINT", 1.0),
        ("0.25::FLOAT", 0.25), ("1e3::DOUBLE", 1000.0), ("(i = 9)", 0.0),
    ],
)  # fmt: skip
def test_numbers_are_rewards(tmp_path, sql, value):
    bodies, report = table(tmp_path, f"{sql} AS reward, {{'n': {sql}}} AS metrics")
    assert [(b["reward"], b["metrics"]["n"]) for b in bodies] == [(value, value)] * 2
    assert not report.refused and not report.dropped


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("DATE '2026-01-01'", 1767225600.0),
        ("TIMESTAMP '2026-01-01 12:00:00'", 1767268800.0),
        ("TIMESTAMPTZ '2026-01-01 12:00:00+02'", 1767261600.0),
        ("TIMESTAMP_NS '2026-01-01 12:00:00'", 1767268800.0),
        ("'20260101T120000Z'", 1767268800.0),
        ("'20260101'", 1767225600.0),
        ("'2026-01-01 12:00:00+00'", 1767268800.0),
        ("'2026-01-01T12:00:00.5z'", 1767268800.5),
        ("1767268800", 1767268800.0),
        ("1767268800000::DECIMAL(20, 0)", 1767268800.0),
    ],
)
def test_moments_are_times(tmp_path, sql, value):
    bodies, report = table(tmp_path, f"{sql} AS at")
    assert [b["at"] for b in bodies] == [value] * 2 and not report.refused and not report.dropped


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("DATE '2026-01-01'", "2026-01-01"), ("TIME '12:00:00'", "12:00:00"), ("1.5::DECIMAL(4, 2)", "1.5"),
        ("'00000000-0000-0000-0000-000000000001'::UUID", "00000000-0000-0000-0000-000000000001"),
        ("'ab'::BLOB", "ab"), ("'x'::ENUM('x', 'y')", "x"), ("true", "true"),
    ],
)  # fmt: skip
def test_other_types_are_tags(tmp_path, sql, text):
    bodies, report = table(tmp_path, f"{{'t': {sql}}} AS tags")
    assert [b["tags"] for b in bodies] == [{"t": text}] * 2 and report.clean


def test_a_refused_row_is_counted_once(tmp_path):
    bodies, report = table(tmp_path, "'test' AS split, 'soon' AS at, 'x' AS nothing")
    assert not bodies and len(report.refused) == 2
    assert not report.dropped and not report.converted and not report.first
