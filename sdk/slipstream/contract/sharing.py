"""One GPU for engine and trainer: who has it, and until when."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slipstream.contract.base import Model, Tag


class HoldIn(Model):
    """``POST engine/hold`` (``engine.share``): new calls wait and the engine sleeps, until ``engine/release`` or until
    ``seconds`` are over.

    The worker that has the hold posts it again to keep it.
    """

    worker: Tag
    seconds: Annotated[float, Field(gt=0, le=600)] = 30.0


class Hold(Model):
    worker: Tag
    until: float
    ready: bool
    """Every engine sleeps: its memory is the worker's. False: it is falling asleep; post again."""
    sleep_seconds: float = 0.0


class EngineReleaseIn(Model):
    """``POST engine/release``: the engine wakes, then the calls that wait go on."""

    worker: Tag


class EngineReleased(Model):
    held: bool
    """False: this worker had no hold (any more)."""
    wake_seconds: float = 0.0
