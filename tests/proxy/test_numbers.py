"""Numbers that JSON does not have."""

from __future__ import annotations

import pytest

from slipstream_proxy.dialects.base import dumps, loads


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have_stay_what_they_are(value):
    text = b'{"a":%b,"b":0.1}' % value.encode()
    assert dumps(loads(text)) == text
