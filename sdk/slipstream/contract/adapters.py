"""Adapters, and where they stand at the gate."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, JsonValue, model_validator

from slipstream.contract.base import Id, Model

MAX_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as ``--max-lora-rank``. An adapter may have any rank up to that."""


def check_lora_rank(rank: object, max_rank: int) -> str | None:
    """Why vLLM would refuse an adapter of this rank (``max_rank``: ``engine.max_lora_rank``), or None."""
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        return f"r = {rank!r} is not a rank: an integer from 1 on is"
    return f"rank {rank} is above engine.max_lora_rank {max_rank}" if rank > max_rank else None


class AdapterState(StrEnum):
    LOADING = "loading"
    CANDIDATE = "candidate"
    """In the engine, the gate has not decided."""
    LIVE = "live"
    RETIRED = "retired"
    """Was live, a later one is."""
    ROLLED_BACK = "rolled_back"
    REFUSED = "refused"


class AdapterIn(Model):
    """``POST adapters``: a folder under ``adapters.dir`` (a multipart upload of the files makes that folder itself)."""

    path: str
    """Relative to ``adapters.dir``. The name is the folder's: ``<model>@<n>``."""
    model: str | None = None
    step: int | None = None
    parent: str | None = None
    batches: list[Id] = Field(default_factory=list)
    meta: dict[str, JsonValue] = Field(default_factory=dict)


class GateReport(Model):
    """What the gate knows about the version that new episodes get, compared with the last accepted one."""

    decision: Literal["undecided", "accept", "rollback"] = "undecided"
    control: str = ""
    """What the version is compared with, and a rollback goes back to. In a verdict on a slow slide: ``best``."""
    best: str = ""
    """The version that no later one was shown to beat. A slow slide is measured against it."""
    difference: float | None = None
    """Mean reward on trial minus that of the control, in reward units and clipped to the usual range of rewards."""
    lower: float | None = None
    """The difference is between ``lower`` and ``upper`` with probability 1 - 2 alpha, at any time. None: not known yet.
    """
    upper: float | None = None
    """Below 0 exactly when the evidence reaches its threshold: the two are one calculation."""
    trial_episodes: int = 0
    control_episodes: int = 0
    evidence: float = 0.0
    """Against what is served. At ``threshold`` it is taken back."""
    threshold: float = 100.0
    drift_difference: float | None = None
    """Mean reward of what is served minus that of ``best``, in reward units."""
    drift_evidence: float = 0.0
    """The part of ``evidence`` that says "worse than ``best``"."""
    control_share: float = 0.0
    """Share of new episodes on the control now. It grows when there is suspicion."""
    best_share: float = 0.0
    episodes_left: int | None = None
    """Finished episodes on trial until a verdict is likely. None: it cannot be said; ``reason`` says why."""
    reason: str = ""
    """Why there is no verdict yet, or what decided, in a sentence."""
    fix: str | None = None
    """What a user can do about it."""
    waiting: list[str] = Field(default_factory=list)
    """Newer versions that wait for the verdict (``gate.pace``)."""


class GateReading(Model):
    """A moment of a trial: the figures of ``GateReport`` as they were after an episode."""

    outcome: int
    """The number of the finished episode after which it was read."""
    at: float
    trial_episodes: int = 0
    control_episodes: int = 0
    difference: float | None = None
    lower: float | None = None
    upper: float | None = None
    evidence: float = 0.0
    drift_difference: float | None = None
    drift_evidence: float = 0.0


class GateEvidence(Model):
    """How the gate's evidence of a version moved, oldest first: a bounded number of readings, evenly chosen."""

    adapter: str
    threshold: float
    """Of ``evidence``: there it is taken back."""
    readings: list[GateReading]


class Adapter(Model):
    name: str
    """``<model>@<n>``; immutable, never used again."""
    model: str
    version: int
    state: AdapterState
    reason: str | None = None
    """Why it has this state: why it was refused, or what the gate saw."""
    created: float
    decided: float | None = None
    path: str
    parent: str | None = None
    step: int | None = None
    batches: list[str] = Field(default_factory=list)
    episodes: int = 0
    """Open episodes pinned to it."""
    loaded: bool = False
    files: bool | None = None
    """Whether its files are there (``adapters.keep`` says how many stay): without them it cannot be promoted. None:
    nobody looked."""
    forced: bool = False
    """A person promoted it: it goes live as soon as it is loaded, without the gate."""
    accepted: bool = False
    """It was live once: a rollback may go back to it."""
    best: bool = False
    """No later version was shown to beat it. Where none of a model has this, the base model is the best one."""
    sha256: str | None = None
    """The hash of its weights file, in hex."""
    engine_path: str | None = None
    """Where the proxy that it came to says that vLLM finds its folder. None: only one proxy uses this store."""
    gate: GateReport | None = None
    """What the gate saw so far."""
    meta: dict[str, JsonValue] = Field(default_factory=dict)
    """What its maker wrote about it."""

    @model_validator(mode="before")
    @classmethod
    def _read_older_forms(cls, data: object) -> object:
        """Version 0.1 kept these in one dict ``numbers``, and its gate had other fields."""
        if not isinstance(data, dict):
            return data
        fields = dict(data)
        if "numbers" in fields:
            cls._read_numbers(fields)
        if isinstance(gate := fields.get("gate"), dict):
            fields["gate"] = {k: v for k, v in gate.items() if k in GateReport.model_fields}
        return fields

    @staticmethod
    def _read_numbers(fields: dict[str, Any]) -> None:
        numbers = dict(fields.pop("numbers") or {})
        for name in ("forced", "accepted", "sha256", "engine_path", "gate"):
            if name in numbers:
                fields.setdefault(name, numbers.pop(name))
        meta = numbers.pop("meta", None)
        fields.setdefault("meta", {**numbers, **(meta if isinstance(meta, dict) else {})})


class AdapterList(Model):
    adapters: list[Adapter]
    live: dict[str, str]
    """Trained model → the adapter (or base model) that new episodes get."""


class GateIn(Model):
    """``POST adapters/{v}/promote`` and ``…/rollback``."""

    reason: str | None = None
