"""The proxy: where it listens, and what a client's model name stands for."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from slipstream.settings.base import Positive, Section
from slipstream.shared.urls import has_password

LOCAL_NAMES = ("localhost", "host.docker.internal", "host.containers.internal")
"""This machine, by its own and its containers' names. No public name ends in .internal, so no page can use one."""


class ProxyConfig(Section):
    host: str = Field("127.0.0.1", description="Address to bind. Anything but loopback needs keys.")
    port: int = Field(
        8100, ge=0, le=65535, description="Port of the OpenAI-compatible API, control API and page; 0 picks one."
    )
    public_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s?#]+$",
        description="Where people open the page: for links in traces, and behind a reverse proxy that changes Host. "
        "None: the address that the agent used.",
    )
    workers: int = Field(1, ge=1, le=64, description="Data-plane processes on the one port.")
    durability: Literal["power", "process", "none"] = Field(
        "power",
        description=(
            "A reply ends once its call is: on the disk (power), handed to the OS (process), or at once (none)."
        ),
    )
    drain_timeout: Positive = Field(30.0, description="Seconds that running streams get after SIGTERM.")
    body_limit: int = Field(32 * 2**20, ge=1024, description="Largest request body in bytes; more is a 413.")
    header_limit: int = Field(32 * 1024, ge=1024, description="Largest request head in bytes; more is a 431.")
    header_timeout: Positive = Field(
        30.0,
        description="Seconds for a request's whole head. A body must keep up 1 KiB a second, with as much slack.",
    )
    client_timeout: Positive = Field(
        120.0,
        description="Seconds after which a call is aborted if its client reads nothing of a reply that waits for it.",
    )
    upstream_timeout: Positive = Field(
        600.0, description="Seconds without a byte from the engine after which a call fails (504)."
    )
    connect_timeout: Positive = Field(5.0, description="Seconds to connect to an engine.")
    segment_bytes: int = Field(64 * 2**20, ge=4096, description="Bytes of a spool segment; then a new one begins.")
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
    metric_tags: list[str] = Field(
        default_factory=list,
        description=(
            "Names of tags that calls are counted by in the metrics (20 values each). "
            "`forget` does not reach them: name no tag of people."
        ),
    )
    allowed_hosts: list[str] = Field(
        default_factory=list,
        description=(
            "Names beside localhost, loopback addresses and proxy.host that may stand in Host and Origin, on every "
            "route, when no keys are set."
        ),
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
    sampling: Literal["strict", "trust"] = Field(
        "strict", description="trust: top-k, penalties and so on do not make a call untrainable."
    )
    temperature: Annotated[float, Field(gt=0, le=2)] | None = Field(
        None, description="Replaces what the client asks, for agents that cannot set it. Training wants 1.0."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(None, description="Likewise. Training wants 1.0.")
    top_k: Annotated[int, Field(ge=-1)] | None = Field(None, description="Likewise. Training wants 0, which is all.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description="Likewise. Training wants 0.")
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = Field(
        None, description="Likewise. Training wants 0."
    )
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = Field(
        None, description="Likewise. Training wants 0."
    )
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = Field(
        None, description="Likewise. Training wants 1.0."
    )

    explore: Literal["temperature", "siblings"] | None = Field(
        None,
        description="For agents whose sampling cannot be trained on (greedy ones, top_p). temperature: a share of "
        "their episodes is sampled at explore_temperature. siblings: the engine is asked for more samples of a share "
        "of their steps in its idle time, and a judge compares them.",
    )
    explore_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.25, description="Share of the episodes that explore changes, or of the calls that get siblings."
    )
    explore_temperature: Annotated[float, Field(gt=0, le=2)] = Field(
        1.0,
        description="Temperature of explored episodes; top_p, top_k, min_p and penalties are then neutral.",
    )

    explore_samples: Annotated[int, Field(ge=2, le=64)] = Field(4, description="Siblings of a step.")
    explore_tokens: Annotated[int, Field(ge=1)] = Field(
        1_000_000, description="Tokens that siblings of this model may sample in a day (UTC)."
    )

    feedback: Literal["next_turn"] | None = Field(
        None,
        description="next_turn: where a user's next turn corrects a reply, its words are feedback on it. The judge "
        "finds them (judge.model).",
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
