"""The store: one protocol, two databases (DuckDB, PostgreSQL), one conformance suite.

A store is made of components: ``store.episodes``, ``store.batches`` and so on, each with the methods that one would
look for there. All methods block and may be called from any thread. Times are seconds since the epoch and always come
from the caller, so that tests can move the clock.

``Mutation.data`` by ``op`` (key: the API key's id, episode: the client's id). All are idempotent, by mutation id and by
what they hold:

- ``reward``  ``{"key", "episode", "reward": RewardIn}``
- ``done``    ``{"key", "episode"}``
- ``delete``  ``{"key": id | None, "episode"}``, or of many ``{"episodes": [[key, episode]]}``
- ``scores``  ``{"group", "scores": ScoresIn, "key": optional}``: like ``judging.score``, which may have run before
  (then it changes nothing)
- ``ack``     ``{"batch", "ack": BatchAck, "members": batches.members(batch)}``: like ``batches.ack``, which may have
  run before
- ``adapter`` ``Adapter``;  ``event`` ``Event``;  ``audit`` ``AuditEntry``;  ``cache`` ``CacheEntry``
- ``pin``     ``{"key", "episode", "model", "adapter", "arm", "chances": optional}``
- ``episode`` ``{"key", "episode", "days", "text"}``: an exported episode as JSON text, and the days of its calls
- ``blank``   ``{}``: stands where a record was that is forgotten
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from slipstream.contract import (
    Adapter,
    BatchAck,
    BatchLeaseIn,
    EpisodeDetail,
    EpisodePage,
    Event,
    Form,
    Group,
    GroupLease,
    GroupLeaseIn,
    JudgeAgreement,
    JudgeBacklog,
    RewardAck,
    ScoresIn,
    SqlResult,
)
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.records import Mutation
from slipstream_proxy.store.call_page import EVERY_CALL, CallPage
from slipstream_proxy.store.values import (
    ArrowBatch,
    EpisodeFilter,
    Erasing,
    Forgotten,
    Name,
    Outcome,
    Pin,
    PinAsk,
    Position,
    RecordedCall,
)

if TYPE_CHECKING:
    from slipstream_proxy.store.audit import AuditLog
    from slipstream_proxy.store.funnel import FunnelCounts
    from slipstream_proxy.store.reports import Reports


class Episodes(Protocol):
    def page(self, wanted: EpisodeFilter) -> EpisodePage:
        """The newest first. Raises ``ValueError`` for a cursor that is not ours."""

    def get(
        self, key: str | None, episode: str, *, tokens: bool = False, page: CallPage = EVERY_CALL
    ) -> EpisodeDetail | None:
        """One episode with all that is known and a page of its calls; None: unknown or deleted. Without a key the
        newest of that id.
        """

    def many(self, names: Collection[Name]) -> dict[Name, EpisodeDetail]:
        """Those of these (key, id) that there are and that are not deleted, without tokens."""

    def call_ids(self, key: str, episode: str) -> set[str]:
        """Ids of its stored calls; empty where there is no such episode."""

    def known(self, key: str | None, ids: Collection[str]) -> list[Name]:
        """Those of these episodes that there are, of this key or (None) of any."""

    def names(self, wanted: EpisodeFilter) -> list[Name]:
        """(key, id) of every episode that the filter wants, its ``limit`` apart."""

    def owners(self, episode: str, most: int = 2) -> list[str]:
        """Keys that have an episode of this id, deleted ones apart, at most ``most`` of them."""

    def has_call(self, key: str, episode: str, call: str) -> bool:
        """Whether the episode has a stored call of this id."""

    def export(
        self, wanted: EpisodeFilter, *, tokens: bool = True, form: Form = "auto"
    ) -> Iterator[list[EpisodeDetail]]:
        """Every episode that the filter wants (its ``limit`` apart), the newest first, as many at a time as a memory
        holds easily.
        """

    def ranked(self, wanted: EpisodeFilter, most: int = 4) -> Iterator[tuple[list[Name], list[Name]]]:
        """The best and the worst runs of each (key, model, task) whose rewards differ, at most ``most`` of each."""


class Rewards(Protocol):
    def acknowledge(self, key: str, episode: str, idempotency: str | None, now: float) -> RewardAck | None:
        """What a post would answer; None: its episode is unknown and ``orphan_ttl`` is over for earlier rewards of
        it (404).
        """

    def standing(self, names: Collection[Name], now: float) -> dict[Name, Literal["new", "known", "gone"]]:
        """What the store knows of these episodes. ``gone``: forgotten, or never seen within ``orphan_ttl``."""


class Pins(Protocol):
    def pin(self, key: str, episode: str, model: str, adapter: str, arm: str, now: float, chances: str = "") -> Pin:
        """The episode's pin: the one stored, else this one (several proxies agree by the first to ask)."""

    def pin_many(self, asks: Sequence[PinAsk]) -> list[Pin]:
        """Those of many, in one transaction; of one episode the first to ask counts."""

    def open(self) -> dict[str, int]:
        """Adapter → open episodes."""

    def move(self, old: str, new: str) -> int:
        """Open episodes of an adapter go on with another one. → How many."""


class Judging(Protocol):
    def lease(self, wanted: GroupLeaseIn, now: float) -> GroupLease | None:
        """Up to ``limit`` groups in which an episode lacks one of the names. None: there is nothing to judge."""

    def score(self, group: str, scores: ScoresIn, now: float) -> bool:
        """False: the lease is not this worker's any more (409). Posting twice under one lease changes nothing."""

    def backlog(self, names: Sequence[str], *, singles: bool, now: float) -> JudgeBacklog:
        """Complete groups in which an episode lacks one of the names."""

    def agreements(self, name: str) -> dict[str, JudgeAgreement]:
        """Source → how far the judge's scores of that name go with the source's rewards."""

    def key_of(self, group: str) -> str | None:
        """Whose group it is; None: there is no such group."""

    def parked(self) -> list[Group]:
        """Groups that the judge failed at too often, with their episodes."""

    def unpark(self, group: str | None) -> int:
        """Hand a parked group (None: all of them) out again, its failures forgotten. → How many."""


class Batches(Protocol):
    def lease(self, wanted: BatchLeaseIn, versions: dict[str, int], live: int, now: float) -> ArrowBatch | None:
        """``versions``: adapter → its version; ``live``: the live one's.

        A run that is more than ``max_staleness`` behind keeps its reward in the baseline of its group and is not
        trained on.
        """

    def ack(self, batch: str, ack: BatchAck, now: float) -> bool:
        """False: the lease is not this worker's any more (409). The same ack twice changes nothing."""

    def members(self, batch: str) -> JsonObject:
        """``{"groups": [id], "episodes": [[key, episode, group]]}`` of a leased batch, for its ``ack`` mutation.

        With it a rebuilt store knows what was trained on.
        """

    def drop_adapter(self, adapter: str) -> int:
        """Groups with episodes sampled from an adapter that was taken back never train. → Groups dropped."""


class AdapterRows(Protocol):
    def put(self, adapter: Adapter) -> None:
        """Insert or replace what is known of an adapter."""

    def all(self) -> list[Adapter]:
        """All that ever were, oldest first, with their open episodes."""

    def since(self, revision: int) -> tuple[int, list[Adapter]] | None:
        """All adapters and the revision they stand at; None: nothing has been put since ``revision``."""

    def swap(self, revision: int, changed: Sequence[Adapter], events: Sequence[Event]) -> int | None:
        """Put changes that belong together, with their events.

        → The new revision; None, and nothing is put: another proxy was first.
        """


class Events(Protocol):
    def add(self, event: Event) -> int:
        """→ The event's id; ids ascend."""

    def latest(self, kinds: Sequence[str]) -> Event | None:
        """The last event of one of these kinds."""

    def within(self, kinds: Sequence[str], since: float | None, until: float | None, limit: int) -> list[Event]:
        """The newest events of these kinds in a span of time, oldest first."""

    def page(self, after: int = 0, limit: int = 1000) -> list[Event]:
        """Events whose id is above ``after``, in order."""


class Cache(Protocol):
    def get(self, key: str) -> JsonObject | None: ...
    def put(self, key: str, value: JsonObject, now: float) -> None: ...

    def trim(self, prefix: str, keep: int) -> int:
        """Drop all entries whose name begins so, but the ``keep`` newest. → How many they were."""


class Archive(Protocol):
    def days(self) -> list[str]:
        """Days with calls, ``YYYY-MM-DD``, oldest first."""

    def drop(self, day: str) -> int:
        """Drop a day's calls, text and tokens; episodes and rewards stay. → Calls dropped."""

    def write(self, day: str, folder: Path, batch: int = 200) -> Path | None:
        """Write the day's calls, whole, to a Parquet file in the folder. None: there is no such day."""

    def note_export(self, export: str, format: str, names: Collection[Name], now: float) -> None:
        """The manifest: these (key, id) stand in the dataset of this id. Again for more of them."""


class Outcomes(Protocol):
    def since(self, model: str, after: int, limit: int = 2000) -> list[Outcome]:
        """A trained model's final rewards in the order in which they became final: those numbered above ``after``."""

    def last(self, model: str, count: int) -> int:
        """The number after which a model has ``count`` outcomes left; 0 if it has no more than that."""

    def prune(self, model: str, read: int) -> int:
        """Drop a model's old outcomes, at most up to number ``read``. → How many they were."""


class Statistics(Protocol):
    def counts(self, now: float) -> JsonObject:
        """Episodes by state, groups by state, calls, untrainable by reason, rewards by source."""

    def funnel(self, judge_name: str, now: float) -> FunnelCounts:
        """The numbers behind "why is there no step yet". ``judge_name``: the reward name that the judge writes."""

    def success_by_adapter(self) -> list[JsonObject]:
        """For the page: adapter, split, arm, episodes, mean reward, std (of the sample; 0 for one)."""

    def rewards_by_source(self) -> list[JsonObject]:
        """For the metrics: source, adapter, split, count, mean, std (of the sample; 0 for one)."""


class Store(Protocol):
    @property
    def episodes(self) -> Episodes: ...
    @property
    def rewards(self) -> Rewards: ...
    @property
    def pins(self) -> Pins: ...
    @property
    def judging(self) -> Judging: ...
    @property
    def batches(self) -> Batches: ...
    @property
    def adapters(self) -> AdapterRows: ...
    @property
    def events(self) -> Events: ...
    @property
    def cache(self) -> Cache: ...
    @property
    def archive(self) -> Archive: ...
    @property
    def statistics(self) -> Statistics: ...
    @property
    def outcomes(self) -> Outcomes: ...
    @property
    def reports(self) -> Reports: ...
    @property
    def audit(self) -> AuditLog: ...

    @property
    def rebuilt(self) -> bool:
        """The file could not be opened and was set aside: this one is new, and the spool is to be replayed from its
        first segment kept.
        """

    @property
    def shared(self) -> bool:
        """Other proxies use it too: what they decide is to be read here, not remembered."""

    def ingest(self, items: Sequence[RecordedCall | Mutation], positions: dict[str, Position]) -> None:
        """Apply in order, exactly once: an item whose id is stored already changes nothing. The ingester alone calls
        this.

        Items and positions are one transaction.
        """

    def positions(self) -> dict[str, Position]:
        """Spool writer → how far its segments are ingested."""

    def forget(self, names: Collection[Name], now: float) -> Forgotten:
        """Forget these episodes: nothing reads them from here on. ``rewrite`` takes them out of the files."""

    def erasing(self) -> list[Erasing]:
        """Forgotten episodes that files of this proxy's may still hold."""

    def rewrite(self) -> list[Erasing]:
        """Rewrite the files, beside reads and writes. → Whom they hold nothing of any more.

        Raises ``StoreError`` when that can't be done now.
        """

    def erased(self, done: Collection[Erasing]) -> None:
        """Nor does anything else (the spool, archives) hold these."""

    def prune(self, now: float, keep: float | None) -> int:
        """Drop small rows that only the recent past needs. ``keep``: seconds for the lists of exported episodes.

        → Rows that are gone.
        """

    def free_share(self) -> float:
        """The share of the database's file that is empty, and that rewriting it would free."""

    def sweep(self, now: float) -> None:
        """Idle episodes become done, groups complete by age, leases run out, orphans expire."""

    def release_leases(self, worker: str) -> int:
        """A worker starts again: what it had leased is free at once. → Leases released."""

    def sql(self, query: str, limit: int, timeout: float) -> SqlResult:
        """One SELECT over the views. Raises ``QueryError`` with one line."""

    def snapshot(self) -> None:
        """Make what is ingested safe in the file itself and verify it; segments before ``positions()`` may go after."""

    def file_missing(self) -> bool:
        """Whether somebody deleted the database's file while it is open."""

    def copy_to(self, folder: Path) -> Path:
        """Write a copy of the database, as it is at one moment, into the folder: DuckDB's file, or PostgreSQL's dump.
        Raises ``StoreError`` or ``OSError``.
        """

    def put_file_back(self) -> None:
        """Write it again from what is open. Raises ``StoreError`` or ``OSError``."""

    def close(self) -> None: ...
