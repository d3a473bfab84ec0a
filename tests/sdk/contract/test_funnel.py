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
    funnel = Funnel(lines=[line(fix="x", blocks=True)])
    assert Funnel.model_validate_json(funnel.model_dump_json()) == funnel


def test_what_an_older_proxy_says_is_read() -> None:
    old = {"stage": "calls", "cause": "none", "count": 0, "text": "no call"}
    assert FunnelLine.model_validate(old | {"blocks": True}).severity is Severity.BLOCKS
    assert FunnelLine.model_validate(old | {"blocks": False}).severity is Severity.REMARK


def test_troubles_and_remarks_are_all_lines() -> None:
    funnel = Funnel(lines=[line(cause=kind, severity=kind) for kind in Severity])
    assert [found.cause for found in funnel.troubles()] == ["blocks", "slows"]
    assert [found.severity.mark for found in funnel.lines] == ["!", "-", "-"]
    assert [found.cause for found in funnel.remarks()] == ["remark"]
