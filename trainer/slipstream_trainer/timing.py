"""How long each part of a step takes, as figures of its event."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from pydantic import JsonValue

STEP_PARTS = (
    "wait",
    "turn",
    "read",
    "layout",
    "reference",
    "gradient",
    "optimize",
    "check",
    "name",
    "save",
    "register",
)
"""Parts of a step, in their order: ``wait`` for groups, since the step before was told of; ``turn``, while other
tenants train; ``read`` and ``layout`` of the batch; ``reference`` (β), ``gradient``, ``optimize`` and ``check`` (what
the step changed) of the model; ``name``, ``save`` (the checkpoint) and ``register`` of the version."""


@contextlib.contextmanager
def timed(figures: dict[str, JsonValue], part: str) -> Iterator[None]:
    """Adds the block's seconds to the figure ``<part>_seconds``; on a GPU, until its last result was asked for."""
    began = time.perf_counter()
    try:
        yield
    finally:
        add(figures, part, time.perf_counter() - began)


def add(figures: dict[str, JsonValue], part: str, seconds: float) -> None:
    name = f"{part}_seconds"
    before = figures.get(name, 0.0)
    figures[name] = (before if isinstance(before, float) else 0.0) + seconds
