"""The judge's side of the contract."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from slipstream.contract.judging import GroupLeaseIn, JudgeReport, JudgeStatus, JudgingStatus, Score, ScoresIn


@pytest.mark.parametrize(
    "wrong", [{"limit": 0}, {"limit": 65}, {"seconds": 0}, {"seconds": 3601}, {"names": []}, {"names": ["a b"]}]
)
def test_what_a_judge_cannot_ask_for(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        GroupLeaseIn.model_validate({"worker": "w", **wrong})


def test_a_score_is_a_bounded_number_with_its_votes() -> None:
    score = Score(episode="e", value=0.5, values=[0.0, 1.0])
    assert (score.name, score.source, score.reason, score.meta) == ("judge", "judge", "", {})
    for wrong in ({"value": float("nan")}, {"value": 1e13}, {"value": 1.0, "values": [float("inf")]}):
        with pytest.raises(ValidationError):
            Score.model_validate({"episode": "e", **wrong})


def test_a_failure_needs_no_scores() -> None:
    failed = ScoresIn(lease="l", failed="the model is away", retry_after=5.0)
    assert failed.scores == []


def test_a_report_is_a_status_once_it_has_a_time() -> None:
    report = JudgeReport(worker="w", scored=3)
    status = JudgeStatus.model_validate({**report.model_dump(), "at": 9.0})
    assert (status.scored, status.at) == (3, 9.0)
    assert JudgingStatus(judges=[status]).backlog.groups == 0


def test_what_is_not_known_is_none_and_not_zero() -> None:
    report = JudgeReport(worker="w")
    assert (report.seconds_per_group, report.cost_per_group, report.spread, report.audit.value) == (None,) * 4
    assert JudgingStatus().seconds_behind is None
