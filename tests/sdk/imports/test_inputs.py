"""Inputs and outputs as programs write them down."""

from __future__ import annotations

import pytest
from tests.support.logs import ASK, END

from slipstream.imports.inputs import messages_of
from slipstream.imports.report import Place, Report


@pytest.mark.parametrize(
    "told",
    [
        [ASK, END], {"messages": [ASK, END]}, [[ASK, END]], {"input": [ASK, END]}, '[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "done"}]',
        {"kwargs": {}, "messages": [[ASK, END]]}, [["human", "hi"], ["ai", "done"]],
    ],
)  # fmt: skip
def test_messages_in_their_frames(told):
    assert messages_of(told, "user", Place(Report(), "f:1")) == [ASK, END]


@pytest.mark.parametrize(
    "told", [END, "done", {"choices": [{"message": END}]}, {"generations": [[{"text": "done"}]]}, {"output": "done"}, [{"type": "text", "text": "done"}]]
)  # fmt: skip
def test_replies_in_their_frames(told):
    assert messages_of(told, "assistant", Place(Report(), "f:1")) == [END]
