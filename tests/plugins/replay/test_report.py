from __future__ import annotations

import functools
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.support.replayed import recorded, tool_message

from slipstream_proxy.control.gate.detector import BettingDetector
from slipstream_replay.comparison import CasePair, PairedTest, pair_of
from slipstream_replay.report import ReplayReport, junit, markdown, worst_step
from slipstream_replay.steps import case_of


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


def test_the_replies_that_are_shown_show_the_loss() -> None:
    """The candidate's worst and the control's best; of several, one that the other side did not give."""
    case = case_of(recorded("e-1"))
    step = case.steps[0]
    scores = {"luck": 1.0, "slip": 0.4, "good": 0.95, "bad": 0.0}

    def scored(replies: list[dict[str, Any]]) -> list[float]:
        return [scores[r["message"]["content"]] for r in replies]

    def shown(*sides: str) -> list[str]:
        step.candidate, step.control = ([{"message": {"content": x}} for x in side.split()] for side in sides)
        pair = pair_of(case, lambda s: (scored(s.candidate), scored(s.control)))
        return [m["content"] for m in worst_step(pair)[1:]]

    assert shown("luck slip slip bad", "bad good luck good") == ["bad", "luck"]
    assert shown("slip slip good", "good good slip") == ["slip", "good"], "the same replies, more or less often"
    scores["twin"] = 0.4
    assert shown("slip twin", "slip slip") == ["twin", "slip"]


def test_a_large_loss_of_few_cases_is_no_verdict() -> None:
    test = PairedTest("mine", 0.007, functools.partial(BettingDetector, lump=1.0, rate=0.0, shifts=False))
    for n in range(12):
        test.see(CasePair(f"e{n}", 0.5, 0.8, 0, case_of(recorded(f"e{n}"))))
    found = ReplayReport("a", "b", [test], [], 4, 10)
    assert (test.verdict, found.exit_code) == ("undecided", 2)
    assert found.remarks()[0] == (
        "No verdict: mine: 12 cases are too few to tell a loss of 0.30 from chance; ask more cases."
    )


def test_a_replay_without_an_answer_is_one_error() -> None:
    suite = ET.fromstring(junit(ReplayReport("a", "b", [], [], 8, 0, short="nobody \x00 answers")))  # noqa: S314 - our own
    error = next(suite.iter("error"))
    assert (suite.get("tests"), suite.get("errors"), error.get("message")) == ("1", "1", "nobody ? answers")


def test_guards_are_named_with_their_sides_and_replies_are_in_junit() -> None:
    found = report("worse")
    found.tests[0].question = "guards"
    found.cases[0].steps[0].candidate[0]["finish_reason"] = "length"
    said = "Guards failed in the candidate: 1 length of 1 replies; control: none of 1 replies."
    failure = next(ET.fromstring(junit(found)).iter("failure")).text  # noqa: S314 - our own
    assert said in markdown(found) and said in str(failure) and '- candidate: "no # tool <b>"' in str(failure)
