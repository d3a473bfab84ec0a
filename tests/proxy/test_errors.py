"""Requests that are not let through."""

from __future__ import annotations

from slipstream_proxy.data.wire.errors import RequestRefused


def test_what_the_client_is_told():
    refused = RequestRefused(429, "too many", retry_after=0.2)
    assert (refused.kind, refused.fields, str(refused)) == ("rate_limit_error", [b"retry-after: 1"], "too many")
    assert RequestRefused(503, "x", retry_after=1.2).fields == [b"retry-after: 2"]
    assert RequestRefused(401, "x").fields == [b"www-authenticate: Bearer"]
    assert RequestRefused(418, "x").kind == "api_error" and RequestRefused(400, "x", param="model").param == "model"
