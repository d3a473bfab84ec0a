"""The funnel's lines as people read them."""

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import ValidationError

from slipstream.contract.funnel import Funnel, FunnelLine, Severity, Stage


def line(**kw: object) -> FunnelLine:
    return FunnelLine.model_validate({"stage": "reward", "cause": "none", "count": 3, "text": "3 wait", **kw})


def test_a_line_ends_with_its_fix_where_there_is_one() -> None:
    assert line().sentence == "3 wait"
    assert line(fix="post a reward").sentence == "3 wait → post a reward"


def test_stages_go_from_call_to_adapter() -> None:
    stages = get_args(Stage)
    assert stages.index("calls") < stages.index("groups") < stages.index("reward") < stages.index("step")
    assert stages[-2:] == ("gate", "plugin")
    with pytest.raises(ValidationError):
        line(stage="elsewhere")


def test_it_travels_as_json() -> None:
    funnel = Funnel(lines=[line(fix="x", severity="blocks")])
    assert Funnel.model_validate_json(funnel.model_dump_json()) == funnel


def test_troubles_and_remarks_are_all_lines() -> None:
    funnel = Funnel(lines=[line(cause=kind, severity=kind) for kind in Severity])
    assert [found.cause for found in funnel.troubles()] == ["blocks", "slows"]
    assert [found.severity.mark for found in funnel.lines] == ["!", "-", "-"]
    assert [found.cause for found in funnel.remarks()] == ["remark"]
