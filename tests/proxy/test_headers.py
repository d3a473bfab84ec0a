"""Header lines that the proxy adds."""

from __future__ import annotations

import pytest

from slipstream_proxy.data.call.headers import adapter_line


@pytest.mark.parametrize("name", ["m@1", "ü", "a\r\nset-cookie: b"])
def test_an_adapters_name_is_one_header_line(name):
    line = adapter_line(name)
    assert (
        line.startswith(b"x-slipstream-adapter: ")
        and line.count(b"\r\n") == 1
        and line.endswith(b"\r\n")
        and line.isascii()
    )
