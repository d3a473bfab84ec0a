"""A request's head."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_proxy.data.wire.request import parse_fields


@pytest.mark.parametrize(
    "text",
    [
        b"a: b\r\n c: d\r\n",
        b"a : b\r\n",
        b"a\r\n",
        b": b\r\n",
        b"a: b\nc: d\r\n",
        b"a: b\rc\r\n",
        b"a: \0\r\n",
        b"a: \x1b[31m\r\n",
        b"a: b\x7f\r\n",
        b"content-length: 1\r\ncontent-length: 2\r\n",
        b"Host: a\r\nhost: b\r\n",
        b"Connection: keep-alive\r\nconnection: close\r\n",
        b"a\xff: b\r\n",
    ],
)
def test_odd_heads_are_not_for_the_fast_path(text):
    assert parse_fields(text) is None


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80))
def test_fields_rubbish(text):
    parsed = parse_fields(text)
    if parsed is not None:
        assert all(line.count(b"\r") == line.count(b"\n") == 1 and line.endswith(b"\r\n") for line in parsed[2])


def test_plain_head():
    headers, _, lines = parse_fields(b"Host: a\r\nAuthorization: Bearer x\r\nX-Slipstream-Task: t\r\nX-Y:  z \r\n")
    assert headers[b"x-y"] == b"z" and headers[b"x-slipstream-task"] == b"t" and lines == [b"X-Y: z\r\n"]
