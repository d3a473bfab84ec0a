"""What every part of the contract is made of: ids, header names, and the base of all bodies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, ClassVar

from pydantic import (
    Field,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from slipstream.models import StrictModel

ID_PATTERN = r"^[A-Za-z0-9._~-]{1,160}$"
"""Stored ids: what a client may choose (``TAG_PATTERN``), and what we add to it (``~2``, a call's number)."""
TAG_PATTERN = r"^[A-Za-z0-9._-]{1,128}$"
PLAIN_ID_PATTERN = re.compile(r"(?!\.{1,2}\Z)" + TAG_PATTERN.removeprefix("^").removesuffix("$") + r"\Z")
"""What is an id as it is. Not ``.`` and ``..``: in a path, clients and servers read them as folders."""

Id = Annotated[str, StringConstraints(pattern=ID_PATTERN)]
Tag = Annotated[str, StringConstraints(pattern=TAG_PATTERN)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


def _number(value: object, read: ValidatorFunctionWrapHandler) -> float:
    try:
        return float(read(value))
    except ValidationError as e:
        if fix := _stands_for(value):
            said = str(value).lower() if isinstance(value, bool) else repr(str(value)[:40])
            raise ValueError(f"{said} is no number; {fix}") from e
        raise


def _stands_for(value: object) -> str | None:
    """Which number to send for a score of another type."""
    if isinstance(value, bool):
        return "send 1 for true and 0 for false"
    if isinstance(value, str):
        return "send a number for each category (good 1, bad 0), and a text as feedback (POST episodes/{id}/feedback)"
    return None


RewardValue = Annotated[float, Field(allow_inf_nan=False, ge=-1e12, le=1e12), WrapValidator(_number)]
"""Bounded, so that weights and sums of rewards stay finite."""

API_PREFIX = "/slipstream/v1"


IMPORT_UPSTREAM = "import"
"""Where a call, a reward and a run came from that were brought in from a log."""
JUDGE_CACHE_PREFIX = "judge-"
"""How the names of the judge's cached answers begin, which hold what it said of some episodes."""

EXPLORE_TAG = "explore"
"""The tag of an episode that was sampled otherwise than its agent asked. Its value says how."""

SIBLINGS_TAG, SIBLING_TAG = "siblings", "sibling-of"
"""Tags of a step that was sampled once more: how many samples its group has, and the episode that it is a step of."""


REPLAY_OF_TAG = "replay-of"
"""The tag of a run that a replay played again (split ``eval``). Its value says of which, as ``replay_of`` makes it."""


def replay_of(key: str, episode: str) -> str:
    """A mark of the episode that a replay's run is a copy of. It fits into a header, and names nobody."""
    return sha256(f"{key}/{episode}".encode(errors="surrogatepass")).hexdigest()[:32]


class Headers:
    """Header names of the data plane. None of the ``x-slipstream-*`` ever reaches the engine."""

    PREFIX = "x-slipstream-"
    EPISODE = "x-slipstream-episode"
    TASK = "x-slipstream-task"
    SPLIT = "x-slipstream-split"
    DONE = "x-slipstream-done"
    TAG = "x-slipstream-tag-"
    CALL = "x-slipstream-call"
    ADAPTER = "x-slipstream-adapter"
    TRAINABLE = "x-slipstream-trainable"
    TENANT = "x-slipstream-tenant"
    """In whose place the operator asks."""


class Split(StrEnum):
    TRAIN = "train"
    EVAL = "eval"
    OFF = "off"
    """Relay, store nothing."""
    SIBLING = "sibling"
    """A step of somebody's run, sampled once more (``explore = "siblings"``): no run of an agent."""


class Model(StrictModel):
    """Base of all bodies."""

    known_as: ClassVar[Mapping[str, str]] = {}
    """What others call a field → the field: what a refusal suggests."""


class Error(Model):
    """The one shape of every control-API error: ``{"error": {...}}``."""

    class Detail(Model):
        type: str
        message: str
        field: str | None = None
        fix: str | None = None

    error: Detail
