"""A server with OpenAI's API and without token ids: llama.cpp's, Ollama, LM Studio, a hosted API.

Calls are relayed as they are and recorded as text. They can be judged and exported, and never trained on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Final

from slipstream.engines.engine import NO_IDS, Engine, EngineFacts, EngineQuestion, JsonDict, Steps, known
from slipstream.engines.findings import NO_CALLS, Finding, fail, ok, warn

if TYPE_CHECKING:
    import httpx

    from slipstream.config import Config

TRANSLATED_PATHS: Final = ("/v1/messages", "/v1/responses")
"""Formats that the proxy asks as chat completions where the server has no route for them."""
_NO_ROUTE: Final = (404, 405, 501)
_A_MODEL: Final = re.compile(r"model", re.IGNORECASE)
_UNEXPECTED: Final = re.compile(r"unexpected endpoint", re.IGNORECASE)
_CALLED: Final = {"llamacpp": "llama.cpp", "library": "Ollama", "organization_owner": "LM Studio", "sglang": "SGLang"}
"""``owned_by`` of the models that a server lists → what it is."""
TRAIN_IT = "serve the model with vLLM to train on its calls"


class OpenAIServer(Engine):
    kind = "openai"
    title = "OpenAI-compatible server"
    fixes: ClassVar[Mapping[str, str]] = {NO_IDS: TRAIN_IT}

    def recognise(self, cards: list[JsonDict]) -> Steps[str | None]:
        owner = next((called for c in cards if (called := _CALLED.get(str(c.get("owned_by"))))), None)
        version = (yield EngineQuestion("GET", "/api/version")).object.get("version")
        return f"Ollama {version}" if version and owner in (None, "Ollama") else owner

    def behaves(self, model: str) -> Steps[bool]:
        """It lists its models: that is enough."""
        return known(True)

    def learn(self, *, fresh: bool, before: EngineFacts) -> Steps[EngineFacts]:
        """Which formats it has a route for: an empty body is refused there, and costs nothing."""
        if not fresh:
            return before
        routes = []
        for path in TRANSLATED_PATHS:
            answer = yield EngineQuestion("POST", path, {})
            # some say 404 of the model that the body does not name, and one says 200 of a route that it does not have
            there = answer.status not in _NO_ROUTE or _A_MODEL.search(answer.text)
            if there and not _UNEXPECTED.search(answer.text):
                routes.append(path)
        return EngineFacts(routes=tuple(routes))

    def examine(self, http: httpx.Client, config: Config, root: str | None) -> Iterator[Finding]:
        import httpx as client

        body = {"model": config.model_name, "messages": [{"role": "user", "content": "hello"}]}
        answer = http.post("/v1/chat/completions", json=body)
        try:
            answer.raise_for_status().json()["choices"][0]["message"]
        except (client.HTTPError, ValueError, LookupError, TypeError) as e:
            yield fail(
                f"a chat completion failed: {e!r} {answer.text[:200]}",
                NO_CALLS,
                "see what the server logs of it, mend it, and run `slipstream doctor` again",
            )
            return
        yield ok("calls are relayed, recorded as text, judged and exported")
        if config.trainer.enabled:
            yield warn(
                "the engine gives no token ids",
                "no call of it is ever trained on, so a trainer has nothing to do",
                f"{TRAIN_IT}, or set trainer.enabled = false",
            )
