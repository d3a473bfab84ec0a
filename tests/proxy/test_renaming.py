"""Names in replies and headers."""

from __future__ import annotations

import pytest

from slipstream_proxy.data.call.steps.renaming import names_of
from slipstream_proxy.dialects.base import dumps


@pytest.mark.parametrize("name", ["m", 'a"b', "ü", "a\\b", "x" * 300])
def test_names_are_replaced_as_json(name):
    compact, client, spaced, client_spaced, ours, theirs = names_of("adapter@1", name)
    assert b'{"model":"adapter@1"}'.replace(compact, client) == b'{"model":' + dumps(name) + b"}"
    assert b'{"model": "adapter@1"}'.replace(spaced, client_spaced) == b'{"model": ' + dumps(name) + b"}"
    assert b"`adapter@1`".replace(ours, theirs) == b"`" + dumps(name)[1:-1] + b"`"
