"""What is told of an import."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from slipstream_chat.report import MOST_LINES, Counts, Place, Refused, Report, time_of


@pytest.mark.parametrize(
    "value",
    [1_780_000_000, 1_780_000_000_000, 1_780_000_000_000_000_000, "1780000000", datetime.fromtimestamp(1_780_000_000, UTC), datetime.fromtimestamp(1_780_000_000, UTC).isoformat()],
)  # fmt: skip
def test_a_time_in_any_unit_is_seconds(value: object) -> None:
    assert time_of(value) == 1_780_000_000.0


@pytest.mark.parametrize("value", ["soon", None, -1, float("nan"), float("inf"), [], "-5", True, "9999-99-99"])
def test_what_is_no_time(value: object) -> None:
    assert time_of(value) is None


def test_a_number_is_certain_or_refused() -> None:
    place = Place(Report(), "f:1")
    assert [place.number(v, "x") for v in (2, "0.5", True)] == [2.0, 0.5, 1.0]
    for bad in (None, [1], {}, "", "one", float("inf"), 1e13):
        with pytest.raises(Refused, match="^x: "):
            place.number(bad, "x")
    assert place.score("one", "y") is None and place.score(None, "y") is None
    assert place.report.dropped.total() == 1 and place.report.converted.total() == 2


def test_lines_name_each_refusal_up_to_a_number_and_sum_up_the_rest() -> None:
    report = Report()
    for n in range(MOST_LINES + 5):
        report.refuse(f"f:{n}", "no")
        Place(report, f"f:{n}").drop("x", "why")
    lines = report.lines()
    assert lines[0] == "refused: f:0: no" and lines[MOST_LINES] == "refused: 5 more"
    assert lines[-1] == f"dropped: {MOST_LINES + 5} × x: why (first at f:0)"
    report.take(Counts(1, 2, 1, 0))
    assert (
        report.summary()
        == f"1 episode, 2 calls, 1 tool call, 0 rewards, {MOST_LINES + 5} refused, {MOST_LINES + 5} dropped"
    )
    assert report.as_json()["dropped"] == [{"what": "x", "why": "why", "count": MOST_LINES + 5, "first": "f:0"}]


def test_what_a_log_holds_makes_no_line_of_its_own() -> None:
    report = Report()
    Place(report, "f:1").drop("nope\nINFO forged", "it is\x1b[2J no field")
    assert all(line.isprintable() for line in report.lines()) and len(report.lines()) == 1
