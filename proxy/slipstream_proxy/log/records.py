"""What stands in the spool: calls from the data plane, mutations from the control plane.

A frame is ``u32 length | u32 crc32c(payload) | payload`` (little-endian), a payload ``u8 kind | u32 head length |
head (JSON) | request | reply``. Request and reply are the raw bytes of the engine's side, so that nothing is parsed
while a client waits; the ingester parses them with the call's dialect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import blake2b

from slipstream_proxy.json_types import Json, JsonList, JsonObject

IMPORTED_ID_PREFIX = "0" * 10
"""How ids of imported calls begin, where others have their time. They sort first, so that what the store knows of new
ids stays true.
"""


_MARK = re.compile(r"forgotten-[0-9a-f]{24}")


def mark_of(episode: str) -> str:
    """What is kept of a forgotten episode's id: a hash. A mark's own mark is itself."""
    if _MARK.fullmatch(episode):
        return episode
    return "forgotten-" + blake2b(episode.encode("utf-8", "replace"), digest_size=12).hexdigest()


class Kind(IntEnum):
    CALL = 1
    MUTATION = 2


@dataclass(slots=True)
class CallHead:
    """The small part of a call's record; ``request_bytes`` says where in the payload the reply begins."""

    id: str
    """Unique over all proxies: 26 characters that sort by time."""
    key: str
    """The API key's id; ``-`` without keys. An episode's identity is (key, episode)."""
    episode: str
    task: str | None
    split: str
    tags: dict[str, str]
    model: str
    """The client's name for it."""
    trained: str | None
    """The trained model that the name maps to; None for base models and external upstreams."""
    adapter: str | None
    """The name that was sent to the engine."""
    arm: str
    """``live``, ``control``, ``best``, ``candidate``: why this adapter."""
    pin: str
    """``control`` (asked), ``sole`` (there was one adapter), ``local`` (the control plane was away), ``moved`` (the
    pinned version was given up)."""
    dialect: str
    stream: bool
    at: float
    seconds: float
    first_byte: float | None
    """Seconds to the first byte of the reply."""
    status: int
    outcome: str
    """``ok``, ``aborted`` (the client went away), ``error``."""
    upstream: str
    external: bool = False
    """An upstream that is no engine of ours: text only."""
    origin: str = "header"
    """What named the episode: header, path, key, metadata, trace, session, continued, new."""
    grouped: bool = True
    """False: no task was named."""
    done: bool = False
    """This was the episode's last call."""
    attempt: int = 0
    """``x-stainless-retry-count``: above 0, the same body's earlier attempt is superseded."""
    body_hash: str = ""
    idempotency_key: str | None = None
    trust_sampling: bool = False
    """``models.x.sampling = "trust"``."""
    request_bytes: int = 0
    tick: float = 0.0
    """When it was written, by the machine's monotonic clock, which all processes share and nobody sets."""
    boot: str = ""
    """Since which start of the machine ``tick`` counts."""
    note: str | None = None
    """Why the capture is not whole (a dialect without ids, redaction failed)."""
    kind: str = ""
    """What the call is in its run, where its client says it."""
    chances: str = ""
    """Probability of each arm when the episode was assigned (``assignment.Assignment``)."""
    version: int = 1
    extra: JsonObject = field(default_factory=dict)


@dataclass(slots=True)
class Choice:
    """One sampled reply. ``logprobs`` belong to ``completion_ids``, one each; both empty where the engine gave none."""

    message: Json
    finish_reason: str | None
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop: str = ""
    """The stop string that ended it, which the engine cut off."""


@dataclass(slots=True)
class Parsed:
    """What a dialect reads out of a call's raw bytes."""

    messages: JsonList
    tools: JsonList
    sampling: JsonObject
    """Effective: temperature, top_p, top_k, min_p, penalties, n, max_tokens, seed, and what forces the output."""
    prompt_ids: list[int]
    choices: list[Choice]
    untrainable: str | None
    """The first reason why no choice may be trained on; None when all may."""
    error: str | None = None


@dataclass(slots=True)
class Mutation:
    """A change that the control plane accepted, in the order it did: replayed when the store is rebuilt.

    ``op``: reward, done, delete, scores, ack, adapter, event, pin, cache. ``data`` is that op's contract model as a
    dict.
    """

    id: str
    op: str
    at: float
    data: JsonObject
    tick: float = 0.0
    """When, by the machine's monotonic clock; the spool's writer says it."""
    boot: str = ""
    """Of which start of which machine."""
