"""What OpenAI's own formats share."""

from __future__ import annotations

import pytest
from tests.support.dialects import CHAT

from slipstream_proxy.dialects import BY_NAME


@pytest.mark.parametrize("name", ["chat", "completions"])
def test_what_the_engine_will_refuse_is_not_changed(name):
    odd = {"messages": [], "prompt": "x", "return_token_ids": "maybe"}
    assert BY_NAME[name].inject(dict(odd)).body["return_token_ids"] == "maybe"
    assert CHAT.inject({"model": "m"}).body == {"model": "m"}  # the engine's error counts the fields
