"""Rewards over adapters and time, as they travel."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from slipstream.contract.learning import Learning, LearningPoint

POINT = {
    "start": 1.0,
    "end": 2.0,
    "n": 1,
    "mean": 0.5,
    "low": 0.0,
    "high": 1.0,
    "success": 0.0,
    "success_low": 0.0,
    "success_high": 0.8,
}


def test_one_episode_has_no_standard_error() -> None:
    point = LearningPoint.model_validate(POINT)
    assert (point.se, point.success_se, point.series, point.adapter) == (None, None, None, None)


@pytest.mark.parametrize("missing", ["n", "mean", "success", "start"])
def test_a_point_has_its_figures(missing: str) -> None:
    with pytest.raises(ValidationError, match=missing):
        LearningPoint.model_validate({k: v for k, v in POINT.items() if k != missing})


def test_it_travels_as_json() -> None:
    learning = Learning(points=[LearningPoint.model_validate(POINT)], success_from=0.5)
    assert Learning.model_validate_json(learning.model_dump_json()) == learning
    assert learning.left_out == 0
