"""Which routes there are."""

from __future__ import annotations

import pytest

from slipstream_proxy.data.routes.paths import decoded, hint, methods
from slipstream_proxy.dialects import BY_PATH

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


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/chat/completions", "must end with /v1"),
        ("/messages", "must end with /v1"),
        ("/models", "must end with /v1"),
        ("/v1/v1/chat/completions", "take /v1 out"),
        ("/v1/v1/messages", "take /v1 out"),
        ("/openai/v1/models", "take /openai out"),
        ("/v1/chat/completions/chat/completions", "take /chat/completions out"),
        ("/v1/chat/completions/models", "take /chat/completions out"),
        ("/v1/v1beta/models/m:generateContent", "take /v1 out of its path"),
        ("/v1beta/models/m:countTokens", "of Google's format only"),
        ("/api/chat", "Ollama's own format"),
        ("/api/event_logging/batch", None),  # Claude Code's, and nobody's format
        ("/openai/deployments/m/chat/completions", "Azure's form"),
        ("/v1/load_lora_adapter", None),
        ("/v1/messages/batches", None),
        ("/nope", None),
        ("/", None),
        ("", None),
    ],
)
def test_a_wrong_base_url_is_told_what_is_wrong(path, said):
    found = hint(path)
    assert (said in found) if said is not None and found is not None else found is said


@pytest.mark.parametrize("path", [*BY_PATH, "/v1/models", "/v1/embeddings", "/tokenize"])
def test_a_route_that_there_is_has_no_hint_and_any_wrong_beginning_has_one(path):
    assert methods(path)
    if path.startswith("/v1/"):
        assert all(hint(f"{before}{path}") for before in ("/v1", "/openai", "/api", "/a/b"))
