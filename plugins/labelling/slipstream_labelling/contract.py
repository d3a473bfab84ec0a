"""What is asked and answered about labels and comments."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from slipstream.contract import Episode, LabelAgreement, Reward
from slipstream.contract.base import Model


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


class LabelCases(Model):
    """``GET labels/queue``, the most uncertain first."""

    cases: list[LabelCase]
    looked_at: int
    """Finished episodes without a label that were compared: the newest."""
    labelled: int
    """Episodes that have a reward with source ``human``."""
    agreement: LabelAgreement | None = None
    """None: no two people have labelled the same run."""
