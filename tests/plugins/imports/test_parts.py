"""Parts that say nothing, and parts of no known kind."""

from __future__ import annotations

import pytest

from slipstream_chat.messages import part_of
from slipstream_chat.report import Place, Report


@pytest.mark.parametrize(
    "part", [{"type": "hologram", "data": 1}, {"type": "step-start"}, {"executableCode": {"code": "1"}}]
)
def test_what_cannot_be_said_is_told(part):
    place = Place(Report(), "f:1")
    assert list(part_of(part, place)) == [] and place.report.dropped.total() == 1


def test_an_invocation_is_a_call_and_its_answer():
    told = {
        "toolInvocation": {"toolCallId": "c", "toolName": "ls", "args": {}, "result": [1]},
        "type": "tool-invocation",
    }
    kinds = list(part_of(told, Place(Report(), "f:1")))
    assert [kind for kind, _ in kinds] == ["call", "answer"]
    assert kinds[1][1] == {"role": "tool", "tool_call_id": "c", "name": "ls", "content": "[1]"}
