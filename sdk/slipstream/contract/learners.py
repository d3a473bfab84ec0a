"""Which trainer learns for a model: one at a time, and the names of the versions that it makes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slipstream.contract.base import Id, Model, Tag


class LearnerIn(Model):
    """``POST learner``: be the one trainer of a model, or stay it. A trainer asks again every few seconds."""

    worker: Tag
    model: str | None = None
    place: Annotated[str, Field(max_length=300)] = ""
    """Where the trainer is, for people: its host and its folder."""
    token: Id
    """A secret of this start. What the trainer posts names it as ``learner``."""
    known: Annotated[list[Id], Field(max_length=16)] = Field(default_factory=list)
    """Tokens of the folder's earlier starts: the trainer that is started again need not wait for itself."""
    seconds: Annotated[float, Field(ge=0, le=600)] = 30.0
    """After these without another ``POST learner`` a trainer that waits takes over. 0: it ends."""


class WaitingLearner(Model):
    worker: Tag
    place: str
    since: float


class ModelLearner(Model):
    """The one trainer that makes a model's versions, and those that wait for it to go."""

    model: str
    worker: Tag
    place: str
    since: float
    until: float
    waiting: list[WaitingLearner] = Field(default_factory=list)


class LearnerAnswer(ModelLearner):
    held: bool
    """Whether the trainer that asks is the one."""
    epoch: int = 0
    """Grows when another trainer takes over. A folder of an earlier one has steps that no version is made from."""


class NameClaimIn(Model):
    """``POST adapters/claim`` → the name of a version that is about to be written. Nobody else gets it."""

    model: str | None = None
    above: Annotated[int, Field(ge=0)] = 0
    """A version that the writer knows: the name's is higher."""
    learner: Id | None = None


class NameClaim(Model):
    name: str
