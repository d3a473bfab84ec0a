from __future__ import annotations

import json

import numpy as np

from slipstream_trainer.versions.events import clean, event, line


def test_events_are_json_whatever_was_measured() -> None:
    found = event(
        "step", loss=float("nan"), kl=0.123456789, counts={"a": 1}, many=(1, float("inf")), name=np.float64(0.5)
    )
    assert json.loads(found.model_dump_json())["data"] == {
        "loss": None,
        "kl": 0.123457,
        "counts": {"a": 1},
        "many": [1, None],
        "name": 0.5,
    }
    assert clean("text") == "text"


def test_a_line_says_what_there_is() -> None:
    assert line({"step": 3, "adapter": "m@3", "loss": 0.25}) == "step 3, m@3, loss 0.25"
