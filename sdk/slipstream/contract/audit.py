"""Who changed what by hand, cases for people to label, and notes on the time axis."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints

from slipstream.contract.base import Model
from slipstream.contract.episodes import Episode, Reward


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


class CommentIn(Model):
    """``POST episodes/{id}/comments``: what a person says of a run, or who is to label it; one of the two or both."""

    text: str | None = Field(default=None, min_length=1, max_length=4000)
    to: Annotated[str, StringConstraints(strip_whitespace=True, max_length=128)] | None = None
    """A person's name, as you write it. Empty: nobody any more."""


class Comment(Model):
    id: str
    at: float
    by: str | None = None
    """The name of the key that was used, or its id; None: there are no keys."""
    text: str | None = None
    to: str | None = None


class Comments(Model):
    """``GET episodes/{id}/comments``, oldest first."""

    comments: list[Comment]
    assigned: str | None = None
    """To whom, by the latest of them that says so."""


class LabelCase(Model):
    """An episode for a person to label."""

    episode: Episode
    uncertainty: float
    """From 0 to 1: how much a label would tell."""
    why: str
    assigned: str | None = None
    """The person who is to label it."""
    rewards: list[Reward] = Field(default_factory=list)


class LabelAgreement(Model):
    """How far people agree who labelled the same run under the same name, each with a key of their own."""

    runs: int
    people: int
    pairs: int
    same: float
    """Share of pairs of labels with one value. The true one lies between ``low`` and ``high`` in 95 of 100 cases."""
    low: float
    high: float
    distance: float
    """Mean distance of the two values."""


class LabelCases(Model):
    """``GET labels/queue``, the most uncertain first."""

    cases: list[LabelCase]
    looked_at: int
    """Finished episodes without a label that were compared: the newest."""
    labelled: int
    """Episodes that have a reward with source ``human``."""
    agreement: LabelAgreement | None = None
    """None: no two people have labelled the same run."""


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
