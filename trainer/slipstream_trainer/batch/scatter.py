"""A plan for several processes: the first lays a batch out, and each gets the rows that it computes, and no others.

Of the others' rows it knows the shape: processes agree on what they look at again, and how often they compute.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np

from slipstream_trainer.batch.layout import MicroBatch, Plan, Scored, Slots

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class Outline:
    """Of a micro-batch that another process computes."""

    shape: tuple[int, ...]
    tokens: int
    plain: bool
    """It has no mask."""


@dataclass(frozen=True, slots=True)
class Share:
    """Of a plan, as it is sent. Ids and places have 32 bits on the way."""

    micro: list[MicroBatch | Outline]
    scored: Scored
    counts: tuple[int, int, int, int]
    """The plan's tokens per call, merged and as trees, and ``too_long``."""


def shares(plan: Plan, processes: int) -> list[Share]:
    """By rank."""
    scored = _with_integers(plan.scored, np.int32)
    counts = (plan.tokens_per_call, plan.tokens_merged, plan.tokens_tree, plan.too_long)
    outlines = [Outline(m.ids_RN.shape, m.tokens, m.ends_RN is None) for m in plan.micro]
    found = []
    for rank in range(processes):
        micro: list[MicroBatch | Outline] = [*outlines]
        micro[rank::processes] = [_with_integers(m, np.int32) for m in plan.micro[rank::processes]]
        found.append(Share(micro, scored, counts))
    return found


def plan_of(share: Share) -> Plan:
    """With zeros in the others' rows, which take no memory."""
    micro = [_blank(m) if isinstance(m, Outline) else _with_integers(m, np.int64) for m in share.micro]
    return Plan(micro, _with_integers(share.scored, np.int64), *share.counts)


def _blank(outline: Outline) -> MicroBatch:
    ids, nothing = np.broadcast_to(np.int64(0), outline.shape), np.zeros(0, np.int64)
    place = None if outline.plain else ids
    return MicroBatch(ids, place, place, outline.tokens, Slots(nothing, nothing, nothing))


def _with_integers(given: Kind, dtype: type) -> Kind:
    """The same dataclass, with arrays of integers of that type."""
    changed: dict[str, Any] = {}
    for f in fields(given):  # type: ignore[arg-type]
        value = getattr(given, f.name)
        if isinstance(value, np.ndarray) and value.dtype.kind == "i":
            changed[f.name] = value.astype(dtype)
        elif is_dataclass(value):
            changed[f.name] = _with_integers(value, dtype)
    return replace(given, **changed)  # type: ignore[type-var]
