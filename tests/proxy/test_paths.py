"""Which routes there are."""

from __future__ import annotations

import pytest

from slipstream_proxy.data.routes.paths import decoded, methods

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (CHAT, ["POST"]),
        ("/v1/models", ["GET"]),
        ("/invocations", ["POST"]),
        ("/v1/models/gpt-4o", ["GET"]),
        ("/v1/responses/resp_1", ["GET", "DELETE"]),
        ("/v1/files", ["GET", "POST"]),
        ("/v1/files/f1/content", ["GET"]),
        ("/v1/filesystem", []),
        ("/v1/load_lora_adapter", []),
        ("/v1/files/../../metrics", []),
        ("/v1/responses/%2e%2e", []),
        ("/v1/responses/..%2f..%2fsleep", []),
        ("/v1/responses/..%5csleep", []),
        ("/v1/chat%2Fcompletions", ["POST"]),
        ("/v1/chat%252Fcompletions", []),
        ("/v1/files/a%0d%0ab", []),
        ("", []),
    ],
)
def test_routes(path, allowed):
    assert methods(decoded(path)) == allowed
