"""Who has the GPU."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from slipstream.contract.status import EngineReleased, EngineReleaseIn, Hold, HoldIn


def test_a_hold_ends_by_itself() -> None:
    assert HoldIn(worker="w").seconds == 30.0
    for wrong in (0, -1, 601, float("nan")):
        with pytest.raises(ValidationError):
            HoldIn(worker="w", seconds=wrong)


def test_a_worker_has_a_name() -> None:
    for wrong in ("", "a b", "x" * 129):
        for body in (HoldIn, EngineReleaseIn):
            with pytest.raises(ValidationError):
                body(worker=wrong)


def test_the_answers_travel_as_json() -> None:
    hold = Hold(worker="w", until=9.0, ready=False)
    assert Hold.model_validate_json(hold.model_dump_json()) == hold
    assert EngineReleased(held=False).wake_seconds == 0.0
