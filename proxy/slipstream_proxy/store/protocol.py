"""The store: one protocol, two implementations (DuckDB, PostgreSQL), one conformance suite.

All methods block and may be called from any thread. Times are seconds since the epoch and always come from the caller, so that tests can move the clock.

``Mutation.data`` by ``op`` (key: the API key's id, episode: the client's id). All are idempotent, by mutation id and by what they say:

- ``reward``  ``{"key", "episode", "reward": RewardIn}``
- ``done``    ``{"key", "episode"}``
- ``delete``  ``{"key": id | None, "episode"}``
- ``scores``  ``{"group", "scores": ScoresIn, "key": optional}``: like ``post_scores``, which may have been called before (then it changes nothing)
- ``ack``     ``{"batch", "ack": BatchAck, "members": batch_members(batch)}``: like ``ack_batch``, which may have been called before
- ``adapter`` ``Adapter``;  ``event`` ``Event``;  ``cache`` ``CacheEntry``
- ``pin``     ``{"key", "episode", "model", "adapter", "arm"}``
- ``episode`` ``{"key", "episode", "days", "text"}``: an exported episode as JSON text, and the days of its calls
- ``blank``   ``{}``: stands where a record was that is forgotten
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from slipstream.contract import (
    Adapter,
    BatchAck,
    BatchLeaseIn,
    Deleted,
    Episode,
    EpisodeDetail,
    EpisodePage,
    Event,
    Group,
    GroupLease,
    GroupLeaseIn,
    RewardAck,
    ScoresIn,
    SqlResult,
)
from slipstream_proxy.records import CallHead, Mutation, Parsed


@dataclass(slots=True)
class CallRow:
    """A call as the ingester hands it over: the record's head and what its dialect read."""

    head: CallHead
    parsed: Parsed


@dataclass(slots=True, frozen=True, order=True)
class Position:
    """How far a spool writer's segments are ingested."""

    segment: int
    offset: int


@dataclass(slots=True)
class Rules:
    """The part of the configuration that the store's answers depend on."""

    weights: dict[str, float] = field(default_factory=lambda: {"reward": 1.0})
    credit: str = "episode"
    group_size: int = 8
    group_max_age: float = 3600.0
    ungrouped: bool = True
    idle_timeout: float = 900.0
    orphan_ttl: float = 3600.0
    judge_max_attempts: int = 4
    window: int = 7
    key_share: float = 0.5
    """At most this share of a batch's groups is one key's, when there are others'."""
    min_groups: int = 8
    """What ``counts`` names as needed for a step (``trainer.min_groups``)."""


@dataclass(slots=True)
class EpisodeFilter:
    key: str | None = None
    """None: every key's (an admin asks)."""
    task: str | None = None
    split: str | None = None
    adapter: str | None = None
    state: str | None = None
    model: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    reward_min: float | None = None
    reward_max: float | None = None
    since: float | None = None
    until: float | None = None
    cursor: str | None = None
    limit: int = 50


@dataclass(slots=True)
class Pin:
    adapter: str
    arm: str


@dataclass(slots=True)
class LeasedBatch:
    id: str
    lease: str
    until: float
    table: pa.Table
    """``contract.BATCH_COLUMNS``."""


class Store(Protocol):
    @property
    def rebuilt(self) -> bool:
        """The file could not be opened and was set aside: this one is new, and the spool is to be replayed from its first segment kept."""

    @property
    def shared(self) -> bool:
        """Other proxies use it too: what they decide is to be read here, not remembered."""

    # writing: the ingester alone calls this, in one transaction with the positions
    def ingest(self, items: Sequence[CallRow | Mutation], positions: dict[str, Position]) -> None:
        """Apply in order, exactly once: an item whose id is stored already changes nothing."""

    def positions(self) -> dict[str, Position]: ...

    # episodes
    def episodes(self, wanted: EpisodeFilter) -> EpisodePage: ...
    def episode(self, key: str | None, episode: str, *, tokens: bool = False) -> EpisodeDetail | None: ...
    def reward_known(self, key: str, episode: str, idempotency: str | None, now: float) -> RewardAck | None:
        """What a post would answer; None: its episode is unknown and ``orphan_ttl`` is over for earlier rewards of it (404)."""

    def delete(self, key: str | None, episode: str, now: float) -> Deleted | None: ...
    def sweep(self, now: float) -> None:
        """Idle episodes become done, groups complete by age, leases run out."""

    # pins
    def pin(self, key: str, episode: str, model: str, adapter: str, arm: str, now: float) -> Pin:
        """The episode's pin: the one stored, else this one (several proxies agree by the first to ask)."""

    def open_pins(self) -> dict[str, int]:
        """Adapter → open episodes."""

    def move_pins(self, old: str, new: str) -> int: ...

    # the judge's and the trainer's work
    def lease_groups(self, wanted: GroupLeaseIn, now: float) -> GroupLease | None: ...
    def post_scores(self, group: str, scores: ScoresIn, now: float) -> bool:
        """False: the lease is not this worker's any more (409)."""

    def group_key(self, group: str) -> str | None:
        """Whose group it is; None: there is no such group."""

    def parked(self) -> list[Group]: ...
    def unpark(self, group: str | None) -> int: ...
    def lease_batch(self, wanted: BatchLeaseIn, versions: dict[str, int], live: int, now: float) -> LeasedBatch | None:
        """``versions``: adapter → its version; ``live`` the live one's: what is more than ``max_staleness`` behind is left out and counted."""

    def ack_batch(self, batch: str, ack: BatchAck, now: float) -> bool: ...
    def batch_members(self, batch: str) -> dict[str, Any]:
        """``{"groups": [id], "episodes": [[key, episode, group]]}`` of a leased batch, for its ``ack`` mutation: with it a rebuilt store knows
        what was trained on.
        """

    def release_leases(self, worker: str) -> int: ...
    def drop_adapter_batches(self, adapter: str, now: float) -> int:
        """Groups with episodes sampled from an adapter that was taken back never train."""

    # adapters, events, cache
    def put_adapter(self, adapter: Adapter) -> None: ...
    def adapters_since(self, revision: int) -> tuple[int, list[Adapter]] | None:
        """All adapters and the revision they stand at; None: nothing has been put since ``revision``."""

    def swap_adapters(self, revision: int, changed: Sequence[Adapter], events: Sequence[Event]) -> int | None:
        """Put changes that belong together in one transaction. None, and nothing is put: another proxy was first."""

    def adapters(self) -> list[Adapter]: ...
    def add_event(self, event: Event) -> int: ...
    def events(self, after: int = 0, limit: int = 1000) -> list[Event]: ...
    def cache_get(self, key: str) -> dict[str, Any] | None: ...
    def cache_put(self, key: str, value: dict[str, Any], now: float) -> None: ...

    # looking
    def arm_rewards(self, candidate: str, control: str) -> list[tuple[str, str, float]]:
        """(task, adapter, reward) of done train episodes of these two adapters, oldest first: what the gate tests."""

    def success_by_adapter(self) -> list[dict[str, Any]]:
        """For the page: adapter, split, arm, episodes, mean reward, std."""

    def rewards_by_source(self) -> list[dict[str, Any]]:
        """For the metrics: source, adapter, split, count, mean, std."""

    def counts(self, now: float) -> dict[str, Any]:
        """Episodes by state, groups by state, calls, untrainable by reason, waiting reasons, rewards by source."""

    def sql(self, query: str, limit: int, timeout: float) -> SqlResult: ...
    def export(self, wanted: EpisodeFilter, batch: int = 100) -> Iterator[list[EpisodeDetail]]: ...
    def note_export(self, export: str, format: str, names: Collection[tuple[str, str]], now: float) -> None:
        """The manifest: these (key, id) stand in the dataset of this id. Again for more of them."""

    def ranked(
        self, wanted: EpisodeFilter, most: int = 4
    ) -> Iterator[tuple[list[tuple[str, str]], list[tuple[str, str]]]]:
        """Of each (key, model, task) with rewards that differ: the (key, id) of its best runs, and of its worst, at most ``most`` of each."""

    def days(self) -> list[str]: ...
    def drop_day(self, day: str) -> int: ...
    def archive_day(self, day: str, folder: Path, batch: int = 200) -> Path | None:
        """Write the day's calls, whole, to a Parquet file in the folder. None: there is no such day."""

    def snapshot(self) -> None:
        """Make what is ingested safe in the file itself and verify it; segments before ``positions()`` may go after."""

    def close(self) -> None: ...


__all__ = ["CallRow", "Episode", "EpisodeFilter", "LeasedBatch", "Pin", "Position", "Rules", "Store"]
