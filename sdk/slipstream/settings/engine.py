"""The engine: a vLLM that runs already, or the one that ``up`` starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from slipstream.settings.base import Positive, Section, Share, known, rare
from slipstream.shared.discovery import DNS_SCHEME, FILE_SCHEME, addresses
from slipstream.shared.urls import authorization, split_login

ENGINE_CLASSES: Final[Mapping[str, str]] = {
    "vllm": "slipstream.engines.vllm.engine:Vllm",
    "openai": "slipstream.engines.openai:OpenAIServer",
}
"""Kind → its class, in the order in which a server is asked whether it is one. The last takes every server."""


ENGINE_SCHEMES = ("http", "https", DNS_SCHEME, FILE_SCHEME)
ENGINE_HOST = "127.0.0.1"
"""Where `up` binds vLLM: past the proxy nothing is recorded, and whoever reaches it may load adapters."""


class EngineConfig(Section):
    urls: list[str] = Field(
        default_factory=list,
        description=(
            "Engines that already run; empty: `slipstream up` starts one. dns+http://NAME:PORT stands for each address "
            "of a DNS name (a headless Service), file:/PATH for each line of a file; both are watched."
        ),
    )
    router: str | None = rare(
        None,
        description="Where calls go, if a router stands before the engines. Adapters are loaded into `urls`.",
        when="a router or a gateway spreads calls over several engines",
    )
    session_header: str = rare(
        "X-Session-ID",
        pattern="^[A-Za-z0-9-]{1,64}$",
        description="Header that tells the router a run's id, so that it keeps a run at one engine.",
        when="the router hashes another header (SGLang's: X-SMG-Routing-Key)",
    )
    kind: Annotated[str, known(["auto", *ENGINE_CLASSES], "module:Class")] = rare(
        "auto",
        description=(
            f"What they are: {', '.join(ENGINE_CLASSES)}, or your own as module:Class. openai is a "
            "server without token ids "
            "(llama.cpp, Ollama, a hosted API): its calls are relayed and recorded as text. auto: each is asked."
        ),
        when="the automatic guess is wrong, or the engine is one of your own",
    )
    model: str | None = Field(None, description="Folder or hub name of the base model that `up` serves.")
    name: str | None = Field(
        None, description="Name under which the base model is served; default: its last path part."
    )
    api_key: str | None = Field(None, description="Key sent to the engine. Clients' keys never go upstream.")
    logins: dict[str, str] = rare(
        default_factory=dict,
        description="Engine's address → user:password. A password that stands in `urls` is kept here, and sent there.",
        when="never by hand: passwords of `urls` are kept here",
    )
    port: int = rare(
        0,
        ge=0,
        le=65535,
        description="Port of the vLLM that `up` starts; 0 picks one.",
        when="other programs call the vLLM that `up` starts",
    )
    api_servers: int | None = rare(
        None,
        ge=1,
        le=64,
        description=(
            "API-server processes of the vLLM that `up` starts; None: one for each 4 cores, at most 4, and 1 on a CPU."
        ),
        when="`top` shows one full core of vLLM while the GPU waits",
    )
    max_loras: int = rare(
        8,
        ge=2,
        description="Adapters that vLLM computes with at once.",
        when="more versions than eight are in use at once",
    )
    max_lora_rank: int = Field(16, ge=1, description="Largest rank that vLLM takes.")
    max_model_len: int | None = Field(None, ge=16, description="Context length; None: the model's own.")
    dtype: str = rare(
        "auto",
        description="vLLM's dtype; auto: the model's own on a GPU, the trainer's on a CPU.",
        when="the GPU lacks bfloat16",
    )
    gpu_memory: Share | None = Field(
        None,
        description="Share of the GPU's memory for vLLM; None: 0.9; beside a trainer 0.45, by turns with it 0.85.",
    )
    tool_parser: str | None = rare(
        None,
        description='vLLM tool-call parser, or "none"; None: by its tokenizer, chat template and family.',
        when="tool calls arrive as text",
    )
    reasoning_parser: str | None = rare(
        None,
        description='vLLM reasoning parser, or "none"; None: by its chat template and family.',
        when="thoughts arrive within the reply's text",
    )
    cpu: bool = rare(
        False,
        description="The engine computes on a CPU: `prompt_logprobs` is refused, which ends such a vLLM. `up` sets it.",
        when="an engine that you started yourself computes on a CPU",
    )
    share: bool = Field(False, description="One GPU for engine and trainer: vLLM sleeps while the trainer steps.")
    adapters_dir: str | None = rare(
        None,
        description="Where vLLM sees adapters.dir, if it is mounted elsewhere there.",
        when="the engine runs in a container or on another machine",
    )
    own_responses: bool = rare(
        False,
        description=(
            "Responses go to the engine's own route, without ids: for one that keeps them "
            "(VLLM_ENABLE_RESPONSES_API_STORE=1) or serves gpt-oss."
        ),
        when="the engine keeps responses itself, or serves gpt-oss",
    )
    args: list[str] = Field(default_factory=list, description="More vLLM flags.")
    start_timeout: Positive = rare(
        900.0,
        description="Seconds until a starting engine must answer.",
        when="a large model loads for more than 15 minutes",
    )
    hang_timeout: Positive = rare(
        60.0,
        description="Seconds without an answer to health checks after which `up` restarts its engine.",
        when="the engine is silent for more than a minute while it works",
    )
    health_interval: Positive = rare(
        2.0, description="Seconds between health checks.", when="an engine that is away must be noticed sooner"
    )

    @model_validator(mode="before")
    @classmethod
    def _passwords_apart(cls, data: object) -> object:
        """An engine's address is its name in logs, metrics and status."""
        if not isinstance(data, dict) or not isinstance(urls := data.get("urls"), list):
            return data
        split = [split_login(url) if isinstance(url, str) else (url, None) for url in urls]
        logins = {_base(url): login for url, login in split if login is not None}
        if not logins:
            return data
        return {**data, "urls": [url for url, _ in split], "logins": {**(data.get("logins") or {}), **logins}}

    @model_validator(mode="after")
    def _one_credential(self) -> Self:
        if both := [url for url in self.urls if url in self.logins and self.api_key]:
            raise ValueError(
                f"engine.urls has a password for {both[0]}, and engine.api_key is set: an engine is sent one of them, "
                "leave the other out"
            )
        return self

    def headers(self, url: str) -> dict[str, str]:
        """What an engine's requests carry: its key, or the password of its address."""
        return authorization(url, self.api_key, self.logins)

    @field_validator("urls")
    @classmethod
    def _bases(cls, urls: list[str]) -> list[str]:
        """As OpenAI's clients write them, with ``/v1``, or without."""
        if strange := [url for url in urls if urlsplit(url).scheme not in ENGINE_SCHEMES]:
            raise ValueError(
                f"{strange[0]} is no engine's address: write http://HOST:PORT (https, dns+http and file:/PATH are "
                "taken, too)"
            )
        return [_base(url) for url in urls]

    def addresses(self) -> list[str]:
        """Those of ``urls``, as names and files say it now."""
        return addresses(self.urls)

    @field_validator("router")
    @classmethod
    def _router_base(cls, router: str | None) -> str | None:
        return _base(router) if router else None

    @model_validator(mode="after")
    def _engines_behind(self) -> Self:
        if self.router and not self.urls:
            raise ValueError("engine.router needs engine.urls: the engines behind it, which adapters are loaded into")
        return self


def _base(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")
