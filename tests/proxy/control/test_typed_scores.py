"""A score that is no number is refused with the number that stands for it."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from slipstream.contract import FeedbackIn, RewardIn
from slipstream_proxy.control.api.http import explain


@pytest.mark.parametrize(
    ("kind", "body", "says", "fix"),
    [
        (RewardIn, {"value": True}, "body.value: true is no number", "send 1 for true and 0 for false"),
        (RewardIn, {"value": "good"}, "body.value: 'good' is no number", "send a number for each category (good 1, bad 0)"),
        (RewardIn, {"value": "1"}, "body.value: '1' is no number", "send a number"),
        (RewardIn, {"value": [1]}, "body.value: Input should be a valid number", "see RewardIn"),
        (FeedbackIn, {"thumb": True}, "body.thumb: Input should be 'up' or 'down'", "see FeedbackIn"),
        (RewardIn, {"reward": 1}, "body.reward is not known (and 1 more)", "did you mean value?"),
        (FeedbackIn, {"score": 0.5}, "body.score is not known", "did you mean thumb?"),
    ],
)  # fmt: skip
def test_the_form_that_is_taken_is_said(kind, body, says: str, fix: str) -> None:
    with pytest.raises(ValidationError) as refused:
        kind.model_validate_json(json.dumps(body), strict=True)
    problem = explain(refused.value, "body", kind)
    assert str(problem).startswith(says) and problem.fix is not None and problem.fix.startswith(fix)


def test_numbers_are_taken_as_before_and_so_is_the_schema() -> None:
    assert [RewardIn.model_validate_json(json.dumps({"value": v}), strict=True).value for v in (1, -0.5)] == [1.0, -0.5]
    shown = RewardIn.model_json_schema()["properties"]["value"]
    assert (shown["type"], shown["minimum"], shown["maximum"]) == ("number", -1e12, 1e12)
