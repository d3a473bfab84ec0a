"""Which routes there are: an allow-list, so that the engine's admin routes stay closed."""

from __future__ import annotations

import re
from urllib.parse import unquote

from slipstream_proxy.dialects import BY_PATH, of_path

MODELS_PATH = "/v1/models"
_PASSED = {
    "GET": re.compile(
        r"/(?:v1/models/[^/]+|version|ping|health|load|v1/responses/[^/]+|v1/responses/[^/]+/input_items"
        r"|v1/files(?:/[^/]+){0,2}|v1/batches(?:/[^/]+)?)"
    ),
    "POST": re.compile(
        r"/(?:invocations|v1/embeddings|embeddings|v2/embed|v1/audio/(?:transcriptions|translations|speech)"
        r"|v1/images/(?:generations|edits|variations)|v1/moderations"
        r"|tokenize|detokenize|v1/rerank|v2/rerank|rerank|score|v1/score"
        r"|generative_scoring|pooling|classify|ping|cohere/v2/chat|v1/chat/completions/batch|v1/messages/count_tokens"
        r"|v1/responses/[^/]+/cancel|v1/files|v1/batches|v1/batches/[^/]+/cancel)"
    ),
    "DELETE": re.compile(r"/(?:v1/files/[^/]+|v1/responses/[^/]+)"),
}


def decoded(path: str) -> str:
    """A path as an engine reads it; without a route where it could mean another to a server on the way."""
    if "%" in path:
        path = unquote(path)
    return "" if not path.isprintable() or {".", ".."} & set(path.replace("\\", "/").split("/")) else path


def passed(path: str) -> list[str]:
    """The methods that are relayed without being captured."""
    return [method for method, paths in _PASSED.items() if paths.fullmatch(path)]


_OTHERS = (
    ("/v1beta/", "of Google's format only generateContent and streamGenerateContent: use OpenAI's for the others"),
    *(
        (f"/api/{name}", "this is Ollama's own format, which the engine does not speak: let it use its OpenAI format")
        for name in ("chat", "generate", "embed", "tags", "show", "ps", "pull", "push", "create", "copy", "delete")
    ),
    ("/openai/deployments/", "this is Azure's form of the address: let the client use plain OpenAI"),
)
"""Beginnings of routes of other formats, and what to do."""


def hint(path: str) -> str | None:
    """Why there is no such route, and what to change, where a wrong base URL or another format is the reason."""
    named = [path[at:] for at, char in enumerate(path) if char == "/"]
    whole = next((part for part in named[1:] if methods(part) and part.startswith(("/v1/", "/v1beta/"))), None)
    if whole is not None:
        base = path.removesuffix(whole)
        return f"the base URL is wrong: take {base} out of its path, so that clients ask {whole}"
    routes = [route for route in BY_PATH if route != "/v1/messages"]  # Anthropic has routes below this one
    inside = next((r for r in routes if path.startswith(f"{r}/") and methods("/v1" + path.removeprefix(r))), None)
    if inside is not None:
        return f"the base URL must end with /v1: take {inside.removeprefix('/v1')} out of it"
    if methods("/v1" + path):
        return f"the base URL must end with /v1, so that clients ask /v1{path}"
    return next(
        (f"{text}, with a base URL that ends with /v1" for start, text in _OTHERS if path.startswith(start)), None
    )


def methods(path: str) -> list[str]:
    """All that a route has; empty: there is no such route."""
    if of_path(path) is not None:
        return ["POST"]
    return ["GET"] if path == MODELS_PATH else passed(path)
