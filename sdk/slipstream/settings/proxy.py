"""The proxy: where it listens, and what a client's model name stands for."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from slipstream.settings.base import Positive, Section, rare
from slipstream.shared.urls import has_password

LOCAL_NAMES = ("localhost", "host.docker.internal", "host.containers.internal")
"""This machine, by its own and its containers' names. No public name ends in .internal, so no page can use one."""


class ProxyConfig(Section):
    host: str = Field("127.0.0.1", description="Address to bind. Anything but loopback needs keys.")
    port: int = Field(
        8100, ge=0, le=65535, description="Port of the OpenAI-compatible API, control API and page; 0 picks one."
    )
    public_url: str | None = rare(
        None,
        pattern=r"^https?://[^\s?#]+$",
        description="Where people open the page: for links in traces, and behind a reverse proxy that changes Host. "
        "None: the address that the agent used.",
        when="people reach the page by another address than agents do",
    )
    workers: int = Field(1, ge=1, le=64, description="Data-plane processes on the one port.")
    durability: Literal["power", "process", "none"] = rare(
        "power",
        description=(
            "A reply ends once its call is: on the disk (power), handed to the OS (process), or at once (none)."
        ),
        when="lower latency matters more than calls lost in a power cut",
    )
    drain_timeout: Positive = rare(
        30.0,
        description="Seconds that running streams get after SIGTERM.",
        when="streams run longer than half a minute, and a restart may wait for them",
    )
    body_limit: int = rare(
        32 * 2**20,
        ge=1024,
        description="Largest request body in bytes; more is a 413.",
        when="requests carry images or files above 32 MiB",
    )
    header_limit: int = rare(
        32 * 1024,
        ge=1024,
        description="Largest request head in bytes; more is a 431.",
        when="clients send cookies or tokens above 32 KiB",
    )
    header_timeout: Positive = rare(
        30.0,
        description="Seconds for a request's whole head. A body must keep up 1 KiB a second, with as much slack.",
        when="clients send over slow lines",
    )
    client_timeout: Positive = rare(
        120.0,
        description="Seconds after which a call is aborted if its client reads nothing of a reply that waits for it.",
        when="clients pause for minutes while they read a stream",
    )
    upstream_timeout: Positive = Field(
        600.0, description="Seconds without a byte from the engine after which a call fails (504)."
    )
    connect_timeout: Positive = rare(5.0, description="Seconds to connect to an engine.", when="engines are far away")
    segment_bytes: int = rare(
        64 * 2**20,
        ge=4096,
        description="Bytes of a spool segment; then a new one begins.",
        when="the disk is so small that 64 MiB at a time are too much",
    )
    redact: str | None = Field(
        None,
        description=(
            "module:function(record: dict) -> dict, run before a call is stored: its request, reply and tag.NAME, "
            "each a str. It is asked for names (task, episode, kind, model, tag_name), for texts in JSON as they read "
            "(text.N), and for what people write (reward.reason, feedback.text, comment.text, note.text, …), too: let "
            "it pass what it does not know. A stream's reply comes put together. The agent gets replies as the engine "
            "sends them."
        ),
    )
    metric_tags: list[str] = rare(
        default_factory=list,
        description=(
            "Names of tags that calls are counted by in the metrics (20 values each). "
            "`forget` does not reach them: name no tag of people."
        ),
        when="dashboards should tell agents or teams apart",
    )
    tenant_tag: str | None = rare(
        None,
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        description="Name of a tag (x-slipstream-tag-NAME) whose value is the tenant of calls and rewards by keys of "
        "none. An unknown value is no tenant's; `status` counts those.",
        when="one agent serves several tenants with one key",
    )
    allowed_hosts: list[str] = rare(
        default_factory=list,
        description=(
            "Names beside localhost, loopback addresses and proxy.host that may stand in Host and Origin, on every "
            "route, when no keys are set."
        ),
        when="the proxy is reached by a name of its own and has no keys",
    )

    @property
    def own_names(self) -> set[str]:
        """Names beside loopback addresses that stand for this machine in Host, in lower case."""
        return {*LOCAL_NAMES, self.host.lower(), *(name.lower() for name in self.allowed_hosts)}


SAMPLING_OVERRIDES = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
"""Sampling fields that a model's name may replace."""


class ModelRoute(Section):
    """What a client's model name stands for: one of ``trained``, ``base``, ``upstream``. Without any of them it is the
    trained model, with the sampling that is set here.
    """

    trained: str | None = Field(None, description="A trained model's name: the live adapter answers.")
    base: str | None = Field(None, description="The base model, without adapter.")
    upstream: str | None = Field(
        None, description="Base URL of an external OpenAI-compatible API; recorded as text only."
    )
    model: str | None = Field(None, description="Model name sent to the upstream; default: the client's.")
    api_key_env: str | None = Field(None, description="Environment variable with the upstream's key.")
    sampling: Literal["strict", "trust"] = rare(
        "strict",
        description="trust: top-k, penalties and so on do not make a call untrainable.",
        when="agents use top-k or penalties, and their calls should train anyway",
    )
    temperature: Annotated[float, Field(gt=0, le=2)] | None = rare(
        None,
        description="Replaces what the client asks, for agents that cannot set it. Training wants 1.0.",
        when="agents cannot set it",
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = rare(
        None, description="Likewise. Training wants 1.0.", when="agents cannot set it"
    )
    top_k: Annotated[int, Field(ge=-1)] | None = rare(
        None, description="Likewise. Training wants 0, which is all.", when="agents cannot set it"
    )
    min_p: Annotated[float, Field(ge=0, le=1)] | None = rare(
        None, description="Likewise. Training wants 0.", when="agents cannot set it"
    )
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = rare(
        None, description="Likewise. Training wants 0.", when="agents cannot set it"
    )
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = rare(
        None, description="Likewise. Training wants 0.", when="agents cannot set it"
    )
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = rare(
        None, description="Likewise. Training wants 1.0.", when="agents cannot set it"
    )

    explore: Literal["temperature", "siblings"] | None = rare(
        None,
        description="For agents whose sampling cannot be trained on (greedy ones, top_p). temperature: a share of "
        "their episodes is sampled at explore_temperature. siblings: the engine is asked for more samples of a share "
        "of their steps in its idle time, and a judge compares them.",
        when="agents sample greedily, so that nothing can be learned",
    )
    explore_share: Annotated[float, Field(gt=0, le=1)] = rare(
        0.25,
        description="Share of the episodes that explore changes, or of the calls that get siblings.",
        when="explore is set, and a quarter is too much or too little",
    )
    explore_temperature: Annotated[float, Field(gt=0, le=2)] = rare(
        1.0,
        description="Temperature of explored episodes; top_p, top_k, min_p and penalties are then neutral.",
        when="explore is set, and 1.0 is too wild",
    )

    explore_samples: Annotated[int, Field(ge=2, le=64)] = rare(
        4, description="Siblings of a step.", when="explore is siblings"
    )
    explore_tokens: Annotated[int, Field(ge=1)] = rare(
        1_000_000,
        description="Tokens that siblings of this model may sample in a day (UTC).",
        when="explore is siblings, and its cost should be bounded otherwise",
    )

    feedback: Literal["next_turn"] | None = rare(
        None,
        description="next_turn: where a user's next turn corrects a reply, its words are feedback on it. The judge "
        "finds them (judge.model).",
        when="people correct replies in their next turn",
    )

    def override(self) -> dict[str, float]:
        """The sampling that replaces the client's, by field."""
        asked = {name: getattr(self, name) for name in SAMPLING_OVERRIDES}
        return {name: value for name, value in asked.items() if value is not None}

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.upstream is not None and has_password(self.upstream):
            raise ValueError("upstream has a password, which is not sent: name the key's variable in api_key_env")
        named = sum(x is not None for x in (self.trained, self.base, self.upstream))
        changes = self.override() or self.sampling != "strict" or self.explore or self.feedback
        if named > 1 or (named == 0 and not changes):
            raise ValueError("name exactly one of trained, base, upstream")
        if self.explore is not None and (self.base is not None or self.upstream is not None):
            raise ValueError("explore is for a trained model: leave base and upstream out, or explore")
        if self.feedback is not None and (self.base is not None or self.upstream is not None):
            raise ValueError("feedback is for a trained model: leave base and upstream out, or feedback")
        return self


def route_of(routes: Mapping[str, ModelRoute], name: str) -> ModelRoute | None:
    """What a client's model name stands for: exact names first, then patterns in the file's order."""
    return routes.get(name) or next((route for pattern, route in routes.items() if fnmatchcase(name, pattern)), None)
