from __future__ import annotations

import functools
from xml.etree import ElementTree as ET

import pytest
from tests.support.replayed import recorded, tool_message

from slipstream.replay.comparison import CasePair, PairedTest
from slipstream.replay.report import ReplayReport, junit, markdown
from slipstream.replay.steps import case_of
from slipstream_proxy.control.gate.detector import BettingDetector


def made(verdict: str, pair: CasePair) -> PairedTest:
    test = PairedTest("tool calls", 0.005, functools.partial(BettingDetector, lump=1.0, rate=0.0, shifts=False))
    test.see(pair)
    test.verdict = verdict  # type: ignore[assignment]
    return test


def report(verdict: str, short: str | None = None) -> ReplayReport:
    case = case_of(recorded("e-1"))
    step = case.steps[0]
    step.candidate = [{"message": {"role": "assistant", "content": "no\n# tool <b>"}}]
    step.control = [{"message": tool_message("find", name="x")}]
    test = made(verdict, CasePair("e-1", 0.0, 1.0, 0, case))
    return ReplayReport("a", "b", [test], [case], 4, 10, short=short)


@pytest.mark.parametrize(("verdict", "short", "code", "counts"), [
    ("worse", None, 1, ("1", "0")), ("worse", "few", 1, ("1", "0")), ("undecided", "few", 2, ("0", "1")), ("better", None, 0, ("0", "0")),
])  # fmt: skip
def test_the_exit_status_and_junit_say_the_same(
    verdict: str, short: str | None, code: int, counts: tuple[str, str]
) -> None:
    found = report(verdict, short)
    suite = ET.fromstring(junit(found))  # noqa: S314 - our own
    assert (found.exit_code, (suite.get("failures"), suite.get("errors"))) == (code, counts)


def test_what_a_reply_says_cannot_make_a_heading() -> None:
    text = markdown(report("worse"))
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# Replay: worse", "## Worst cases by tool calls", "### e-1, call 0: 0.00 against 1.00",
    ]  # fmt: skip


def test_replies_are_shown_that_the_other_side_did_not_give() -> None:
    case = case_of(recorded("e-1"))
    same, other = ({"message": tool_message("find", name=n)} for n in ("x", "y"))
    case.steps[0].candidate, case.steps[0].control = [same, {"message": {"content": "no"}}], [same, other]
    text = markdown(ReplayReport("a", "b", [made("worse", CasePair("e-1", 0.5, 1.0, 0, case))], [case], 2, 10))
    control = next(x for x in text.splitlines() if x.startswith("- control"))
    assert '- candidate: "no"' in text and "y" in control and "x" not in control
