"""The base of every model whose fields people write: bodies, query parameters, settings."""

from __future__ import annotations

import json
from typing import TypeVar

from pydantic import VERSION, BaseModel, ConfigDict, ValidationError

M = TypeVar("M", bound=BaseModel)

LOCKED_BUILD_VERSION = (2, 14)
"""Since this pydantic, threads that use a model for the first time wait for one another; before it, the later one may
read with the validator of the model's base."""


class StrictModel(BaseModel):
    """An unknown field is an error, so that nobody misses a typo. The validator is made when the model is first used: a
    process uses few of the 190, and all of them take a sixth of its start.
    """

    model_config = ConfigDict(
        extra="forbid",
        protected_namespaces=(),
        defer_build=tuple(int(part) for part in VERSION.split(".")[:2]) >= LOCKED_BUILD_VERSION,
    )


def read_model(kind: type[M], text: str | bytes) -> M:
    """JSON in which a transcript may stand. Pydantic's own reader refuses what agents and engines may send: halves of
    surrogate pairs, and values nested some 200 deep. Raises ``ValidationError``.
    """
    try:
        return kind.model_validate_json(text)
    except ValidationError as refused:
        try:
            read = json.loads(text)
        except (ValueError, RecursionError):
            raise refused from None
        return kind.model_validate(read)
