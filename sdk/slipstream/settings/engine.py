"""The engine: a vLLM that runs already, or the one that ``up`` starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Self

from pydantic import Field, field_validator, model_validator

from slipstream.settings.base import Positive, Section, Share, known
from slipstream.shared.urls import authorization, split_login

ENGINE_CLASSES: Final[Mapping[str, str]] = {
    "vllm": "slipstream.engines.vllm.engine:Vllm",
    "openai": "slipstream.engines.openai:OpenAIServer",
}
"""Kind → its class, in the order in which a server is asked whether it is one. The last takes every server."""


class EngineConfig(Section):
    urls: list[str] = Field(
        default_factory=list, description="Engines that already run; empty: `slipstream up` starts one."
    )
    kind: Annotated[str, known(["auto", *ENGINE_CLASSES], "module:Class")] = Field(
        "auto",
        description=(
            f"What they are: {', '.join(ENGINE_CLASSES)}, or your own as module:Class. openai is a "
            "server without token ids "
            "(llama.cpp, Ollama, a hosted API): its calls are relayed and recorded as text. auto: each is asked."
        ),
    )
    model: str | None = Field(None, description="Folder or hub name of the base model that `up` serves.")
    name: str | None = Field(
        None, description="Name under which the base model is served; default: its last path part."
    )
    api_key: str | None = Field(None, description="Key sent to the engine. Clients' keys never go upstream.")
    logins: dict[str, str] = Field(
        default_factory=dict,
        description="Engine's address → user:password. A password that stands in `urls` is kept here, and sent there.",
    )
    host: str = Field("127.0.0.1", description="Where `up` binds vLLM.")
    port: int = Field(0, ge=0, le=65535, description="Port of the vLLM that `up` starts; 0 picks one.")
    api_servers: int | None = Field(
        None,
        ge=1,
        le=64,
        description=(
            "API-server processes of the vLLM that `up` starts; None: one for each 4 cores, at most 4, and 1 on a CPU."
        ),
    )
    max_loras: int = Field(4, ge=2, description="Adapters that vLLM computes with at once.")
    max_lora_rank: int = Field(16, ge=1, description="Largest rank that vLLM takes.")
    max_model_len: int | None = Field(None, ge=16, description="Context length; None: the model's own.")
    dtype: str = Field("auto", description="vLLM's dtype; auto: the model's own on a GPU, the trainer's on a CPU.")
    gpu_memory: Share | None = Field(
        None,
        description="Share of the GPU's memory for vLLM; None: 0.9; beside a trainer 0.45, by turns with it 0.85.",
    )
    tool_parser: str | None = Field(
        None, description='vLLM tool-call parser, or "none"; None: by its tokenizer, chat template and family.'
    )
    reasoning_parser: str | None = Field(
        None, description='vLLM reasoning parser, or "none"; None: by its chat template and family.'
    )
    cpu: bool = Field(
        False,
        description="The engine computes on a CPU: `prompt_logprobs` is refused, which ends such a vLLM. `up` sets it.",
    )
    share: bool = Field(False, description="One GPU for engine and trainer: vLLM sleeps while the trainer steps.")
    adapters_dir: str | None = Field(
        None, description="Where vLLM sees adapters.dir, if it is mounted elsewhere there."
    )
    own_responses: bool = Field(
        False,
        description=(
            "Responses go to the engine's own route, without ids: for one that keeps them "
            "(VLLM_ENABLE_RESPONSES_API_STORE=1) or serves gpt-oss."
        ),
    )
    args: list[str] = Field(default_factory=list, description="More vLLM flags.")
    start_timeout: Positive = Field(900.0, description="Seconds until a starting engine must answer.")
    hang_timeout: Positive = Field(
        60.0, description="Seconds without an answer to health checks after which `up` restarts its engine."
    )
    health_interval: Positive = Field(2.0, description="Seconds between health checks.")

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
        return [_base(url) for url in urls]


def _base(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")
