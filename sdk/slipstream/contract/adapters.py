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
    """What the gate measured of a candidate."""

    decision: Literal["undecided", "accept", "rollback"] = "undecided"
    control: str = ""
    """The accepted adapter that the candidate is compared with."""
    pairs: int = 0
    """Blocks of a task in which both adapters ran."""
    difference: float | None = None
    """Mean reward of the candidate minus that of the control, over these blocks."""
    lower: float = -1.0
    upper: float = 1.0
    candidate_mean: float | None = None
    control_mean: float | None = None
    candidate_episodes: int = 0
    control_episodes: int = 0
    evidence_worse: float = 1.0
    """Wealth of the bet that the candidate is worse; rolls back at 1/alpha."""
    evidence_fine: float = 1.0
    alpha: float = 0.05


class Adapter(Model):
    name: str
    """``<model>@<n>``; immutable, never used again."""
    model: str
    version: int
    state: AdapterState
    reason: str | None = None
    """Of the state: why refused, what the gate saw."""
    created: float
    decided: float | None = None
    path: str
    parent: str | None = None
    step: int | None = None
    batches: list[str] = Field(default_factory=list)
    episodes: int = 0
    """Open episodes pinned to it."""
    loaded: bool = False
    forced: bool = False
    """A person promoted it: it goes live as soon as it is loaded, without the gate."""
    accepted: bool = False
    """It was live once: a rollback may go back to it."""
    sha256: str | None = None
    """Of its weights file, in hex."""
    engine_path: str | None = None
    """Where the proxy that it came to says that vLLM finds its folder. None: only one proxy uses this store."""
    gate: GateReport | None = None
    """What the gate saw so far."""
    meta: dict[str, JsonValue] = Field(default_factory=dict)
    """What its maker wrote about it."""

    @model_validator(mode="before")
    @classmethod
    def _read_older_forms(cls, data: object) -> object:
        """Stores, spools and exports of version 0.1 keep these in one dict ``numbers``; a gate may have had other fields."""
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
