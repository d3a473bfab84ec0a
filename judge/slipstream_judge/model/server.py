"""The server behind the judge's model: whether it is near, and how long a context it serves.

A model's name says neither. A near server costs nothing, is not reached through an HTTP proxy, and often serves far
less context than its model could hold. Ollama and LM Studio cut a longer prompt, or answer nothing, and say no error.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from slipstream.config import Config
from slipstream.settings.judge import SELF_JUDGE_MODEL

log = logging.getLogger(__name__)
NEAR_NAMES = (".local", ".localhost", ".internal", ".lan", ".home.arpa", ".svc", ".cluster.local")
OLLAMA_PROVIDERS = ("ollama", "ollama_chat")
PROVIDER_URLS: Mapping[str, tuple[Sequence[str], str | None]] = {
    "openai": (("OPENAI_BASE_URL", "OPENAI_API_BASE"), None),
    "hosted_vllm": (("HOSTED_VLLM_API_BASE",), None),
    "lm_studio": (("LM_STUDIO_API_BASE",), None),
    "llamafile": (("LLAMAFILE_API_BASE",), "http://127.0.0.1:8080/v1"),
    **dict.fromkeys(OLLAMA_PROVIDERS, (("OLLAMA_API_BASE",), "http://localhost:11434")),
}
"""LiteLLM's provider → variables that hold its base URL, and the URL without them."""
SERVER_TIMEOUT_S = 5.0
ADDRESS_ENDINGS = ("_BASE_URL", "_API_BASE")
"""How variables end that say to LiteLLM where a provider is."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104 - compared with, not bound to


@dataclass(slots=True, frozen=True)
class OwnProxy:
    """Where ``judge.model = "self"`` is asked: the proxy of the agents. Nothing of its calls is recorded."""

    url: str
    key: str | None
    name: str
    """Of the trained model; empty: the proxy knows it."""
    tenant: str = ""

    @classmethod
    def of(cls, config: Config, url: str, authorization: str | None) -> OwnProxy:
        known = config.engine.name or config.engine.model
        key = (authorization or "").removeprefix("Bearer ") or None
        return cls(url, key, config.model_name if known else "", config.tenant)

    def model(self, wanted: str) -> str:
        """LiteLLM's name. ``@base``: never an adapter, so that the judge stays the same while the policy moves."""
        return f"hosted_vllm/{self.name if wanted == SELF_JUDGE_MODEL else wanted.partition('/')[2]}@base"


@dataclass(slots=True)
class Served:
    """What a server says of a model. None: it does not say."""

    context: int | None = None
    """Tokens of prompt and answer together."""
    slots: int | None = None
    """Calls that it computes at once."""


def provider_of(model: str) -> str:
    return model.split("/", 1)[0] if "/" in model else "openai"


def base_of(model: str, api_base: str | None) -> str | None:
    """Where LiteLLM sends the model's calls; None: a provider's own address."""
    names, default = PROVIDER_URLS.get(provider_of(model), ((), None))
    return api_base or next((v for n in names if (v := os.environ.get(n))), default)


def ignore_own(url: str) -> None:
    """Take what leads to the agents' proxy out of this process's environment.

    An agent is connected by such a variable, and LiteLLM reads the same: the judge would ask the proxy for a model that
    it does not serve, or its prompts would be recorded as an agent's. ``url``: the proxy's.
    """
    own = _place(url)
    for name in [n for n in os.environ if n.endswith(ADDRESS_ENDINGS) and _place(os.environ[n]) == own]:
        del os.environ[name]
        log.warning(
            "%s leads to Slipstream's own proxy: the judge asks its provider; judge.api_base names a server", name
        )


def _place(url: str) -> tuple[str, int | None]:
    """Host and port. All names of this machine are one."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        port = None
    host = parts.hostname or ""
    return "localhost" if host in LOOPBACK_NAMES else host, port


def is_near(url: str | None) -> bool:
    """An address of no public network, or a name that no public server has (one word, ``.local``, ``.svc`` …)."""
    host = urlsplit(url if url and "//" in url else f"//{url or ''}").hostname or ""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return bool(host) and ("." not in host or host.endswith(NEAR_NAMES))
    return not found.is_global


def bypass(url: str) -> None:
    """Reach this server directly: no proxy from ``HTTP_PROXY`` stands between this machine and it."""
    host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
    for name in ("no_proxy", "NO_PROXY"):
        listed = [part.strip() for part in os.environ.get(name, "").split(",") if part.strip()]
        if host not in listed and "*" not in listed:
            os.environ[name] = ",".join([*listed, host])


async def ask(model: str, base: str, key: str | None = None) -> Served:
    """What the server says of the model, by the ways of vLLM, SGLang, llama.cpp, Ollama and LM Studio.

    Raises nothing: a server that does not answer says nothing.
    """
    name = model.split("/", 1)[-1].removesuffix("@base")
    root = base.rstrip("/").removesuffix("/v1")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    paths = ("/v1/models", "/props", "/api/ps", "/api/v0/models")
    async with httpx.AsyncClient(trust_env=False, timeout=SERVER_TIMEOUT_S, headers=headers) as client:
        models, props, loaded, studio = await asyncio.gather(*(_json(client, root + path) for path in paths))
    served = Served()
    contexts = [
        *(_number(m.get("max_model_len")) for m in _named(models, "data", name)),
        _number(_part(props, "default_generation_settings").get("n_ctx")),
        *(_number(m.get("context_length")) for m in _named(loaded, "models", name)),
        *(_number(m.get("loaded_context_length")) for m in _named(studio, "data", name)),
    ]
    known = [c for c in contexts if c]
    served.context = min(known) if known else None
    served.slots = _number(_part(props).get("total_slots"))
    return served


async def _json(client: httpx.AsyncClient, url: str) -> Any:
    try:
        reply = await client.get(url)
        return reply.json() if reply.status_code == 200 else None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError):
        return None


def _part(value: Any, *path: str) -> dict[str, Any]:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _named(value: Any, field: str, name: str) -> Iterator[dict[str, Any]]:
    """The entries of that model (Ollama adds ``:latest`` to a name without a tag)."""
    entries = _part(value).get(field)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and {entry.get(n) for n in ("id", "name", "model")} & {name, f"{name}:latest"}:
            yield entry


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
