"""Who changed what by hand, cases for people to label, and notes on the time axis."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from slipstream.contract.base import Model


class AuditEntry(Model):
    """One change by hand, or one decision of the gate."""

    id: str
    at: float
    key: str | None = None
    """The API key that was used; ``-`` where no keys are configured; None: a command on the proxy's machine."""
    name: str | None = None
    """The key's name, or the user of that machine; ``gate``: nobody, the gate decided."""
    action: str
    """``promote``, ``demote``, ``freeze``, ``unfreeze``,
    ``label``, ``assign``, ``comment``, ``delete``, ``forget``, ``key_add``, ``key_revoke``, ``pause``, ``resume``,
    ``annotate``, ``import``; of the gate ``accept``, ``rollback``, ``rollback_best``, ``replay passed``,
    ``replay refused``, ``replay undecided``."""
    target: str
    """The adapter, episode, key or model that it was done to."""
    detail: dict[str, JsonValue] = Field(default_factory=dict)


class AuditPage(Model):
    entries: list[AuditEntry]
    """The newest first."""
    next: str | None = None
    """Pass as ``?cursor=`` for the next page; None at the end."""


class AnnotationIn(Model):
    """``POST annotations``."""

    text: str = Field(min_length=1, max_length=2000)
    at: float | None = Field(default=None, ge=0, le=4_102_444_800.0)
    """Seconds since the epoch; None: now."""
    rewards_changed: bool = False
    """Rewards mean something else from then on: the gate's evidence begins anew, and runs from before are none."""


class Annotation(Model):
    """Something that happened at a point of the time axis."""

    id: int
    at: float
    kind: Literal[
        "annotation",
        "rewards_changed",
        "pause",
        "resume",
        "promote",
        "rollback",
        "adapter",
        "refused",
        "live",
        "accept",
    ]
    text: str
    by: str | None = None


class Annotations(Model):
    annotations: list[Annotation]


class PauseIn(Model):
    """``POST training/pause`` and ``…/resume``."""

    reason: str | None = Field(default=None, max_length=2000)


class Paused(Model):
    paused: bool
    since: float | None = None
    by: str | None = None
    reason: str | None = None
