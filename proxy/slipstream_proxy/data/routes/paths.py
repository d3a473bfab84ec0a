"""Which routes there are: an allow-list, so that the engine's admin routes stay closed."""

from __future__ import annotations

import re
from urllib.parse import unquote

from slipstream_proxy.dialects import BY_PATH

MODELS = "/v1/models"
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


def methods(path: str) -> list[str]:
    """All that a route has; empty: there is no such route."""
    if path in BY_PATH:
        return ["POST"]
    return ["GET"] if path == MODELS else passed(path)
