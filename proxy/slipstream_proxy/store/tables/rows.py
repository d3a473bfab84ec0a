"""Rows as the database holds them, and what one batch changes of them.

JSON is text, token ids and log-probabilities are bytes. Rows' fields are the tables' columns (``schema.columns_like``).
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt
import orjson
from pydantic import BaseModel

from slipstream.contract import Episode, Reward, RewardIn
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.log.records import mark_of
from slipstream_proxy.store.tables.driver import Row

T = TypeVar("T")
Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


NESTING_LIMIT = 200
"""Levels that a value may have which orjson cannot write; it writes 254. A text stands in place of deeper ones."""
TOO_DEEP_TEXT = "(nested too deeply to be kept)"


def dump(value: object) -> str:
    """JSON text.

    What orjson cannot write (lone surrogates, integers beyond 64 bits) is ASCII-escaped, after a space that marks it.
    What is nested deeper than its readers go is cut.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return " " + json.dumps(_cut(value, NESTING_LIMIT), separators=(",", ":"))


def _cut(value: object, levels: int) -> object:
    if not isinstance(value, dict | list):
        return value
    if not levels:
        return TOO_DEEP_TEXT
    if isinstance(value, list):
        return [_cut(held, levels - 1) for held in value]
    return {name: _cut(held, levels - 1) for name, held in value.items()}


def load(text: str | None, default: Any = None) -> Any:
    """The inverse of ``dump``."""
    if text is None:
        return default
    return json.loads(text) if text.startswith(" ") else orjson.loads(text)


def dump_list(texts: list[str]) -> str:
    """One JSON array of values that are JSON texts already."""
    body = "[" + ",".join(texts) + "]"
    return " " + body if any(t.startswith(" ") for t in texts) else body


def clean(text: str | None) -> str | None:
    """A client's string as databases take it: no NUL, no lone surrogate."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def ids_of(blob: bytes | None) -> Ids:
    """Token ids, from little-endian int32."""
    return np.frombuffer(blob or b"", "<i4")


def floats_of(blob: bytes | None) -> Floats:
    """Log-probabilities, from little-endian float32."""
    return np.frombuffer(blob or b"", "<f4")


def short(values: Floats) -> list[float]:
    """The numbers in as few digits as name them in 32 bits: half as long as JSON as in 64."""
    if not np.isfinite(values).all():
        return [float(v) for v in values]
    found: list[float] = orjson.loads(orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY))
    return found


def cursor_of(started: float, eid: str) -> str:
    """Where a page of episodes ended, as the client hands it back."""
    return base64.urlsafe_b64encode(f"{started!r}|{eid}".encode()).decode().rstrip("=")


def parse_cursor(cursor: str) -> tuple[float, str]:
    """Raises ``ValueError`` for a cursor that is not ours."""
    started, _, eid = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().partition("|")
    return float(started), eid


def go_on(cursor: str | None, column: str, tests: list[str], params: list[object]) -> None:
    """Only what is behind the cursor, newest first by ``column``. Raises ``ValueError`` for one that is not ours."""
    if cursor:
        at, last = parse_cursor(cursor)
        tests.append(f"({column} < ? OR ({column} = ? AND id < ?))")
        params += [at, at, last]


def page_of(rows: Sequence[T], limit: int, place: Callable[[T], tuple[float, str]]) -> tuple[Sequence[T], str | None]:
    """Of up to ``limit`` + 1 rows: the page, and the cursor of its end; None: there is no more."""
    shown = rows[:limit]
    return shown, cursor_of(*place(shown[-1])) if len(rows) > limit else None


def eid_of(key: str, episode: str) -> str:
    """An episode's identity: its API key and its id."""
    return f"{key}/{episode}"


def name_of(eid: str) -> tuple[str, str]:
    """(key, id)"""
    key, _, episode = eid.partition("/")
    return key, episode


def tombstone_of(eid: str) -> str:
    """The identity under which a forgotten episode swallows what is still to come."""
    key, episode = name_of(eid)
    return eid_of(key, mark_of(episode))


def with_tombstones(eids: Iterable[str]) -> dict[str, str]:
    """Identities under which these episodes may stand in the store → the one of each that was asked for."""
    asked = list(eids)
    return {tombstone_of(eid): eid for eid in asked} | {eid: eid for eid in asked}


def same_named(row: object, model: type[BaseModel]) -> JsonObject:
    """What of a row the model has under the same name."""
    return {name: getattr(row, name) for name in model.model_fields if hasattr(row, name)}


@dataclass(slots=True)
class EpisodeRow:
    """A row of ``t_episodes``. The ingester changes it in place before it is written back."""

    eid: str
    key: str
    id: str
    task: str | None = None
    split: str = "train"
    tags: str = "{}"
    model: str = ""
    adapter: str | None = None
    arm: str = "live"
    state: str = "open"
    started: float = 0.0
    last_at: float = 0.0
    ended: float | None = None
    calls: int = 0
    trained_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reward: float | None = None
    grp: str | None = None
    grouped: bool = True
    alike: str = ""
    adapters: str = "[]"
    retried: bool = False
    untagged: bool = False
    """No header, path or key named it: the data plane did."""
    last_end: float = 0.0
    """When its last call ended."""
    idle: bool = False
    """It is done because no call came, and goes on if one does after all."""
    chances: str | None = ""
    """The probability of each arm when it was assigned (``assignment.Assignment``)."""
    error: str | None = None
    """The run failed: in none of its calls the model said anything, and this is the latest one's error."""

    def row(self) -> Row:
        return tuple(getattr(self, name) for name in EPISODE_FIELDS)

    def public(self) -> Episode:
        other = {
            "tags": load(self.tags, {}),
            "arm": self.arm if self.arm in ("control", "candidate", "best") else "live",
            "ended": None if self.ended is None else max(self.ended, self.last_end),
            "group": self.grp,
        }
        return Episode(**same_named(self, Episode) | other)


EPISODE_FIELDS = tuple(f.name for f in fields(EpisodeRow))
EPISODE_COLUMNS = ", ".join(EPISODE_FIELDS)


class CallRow(NamedTuple):
    """A row of a day's table of calls.

    Of messages, tools and prompt_ids it holds what ``delta_base`` does not have (``delta``).
    """

    id: str
    eid: str
    number: int
    ts: float
    seconds: float
    dialect: str
    model: str
    trained: str | None
    adapter: str | None
    status: int
    outcome: str
    trainable: bool
    reason: str | None
    sampling: str | None
    temperature: float
    delta_base: str | None
    keep_messages: int
    keep_tokens: int
    messages: str | None
    tools: str | None
    reply: str | None
    finish: str
    prompt_tokens: int
    completion_tokens: int
    prompt_ids: bytes
    completion_ids: bytes
    lengths: bytes
    logprobs: bytes
    error: str | None
    body_hash: str
    attempt: int
    extra: str | None
    extends: str | None = None


class RewardRow(NamedTuple):
    """A row of ``t_rewards``. ``seq`` is given when it is inserted."""

    id: str
    seq: int
    eid: str
    call: str | None
    name: str
    source: str
    value: float
    reason: str | None
    idem: str | None
    meta: str
    ts: float

    @classmethod
    def of(cls, id: str, eid: str, given: RewardIn | Reward, at: float) -> Self:
        """The row of a reward that was posted or exported."""
        texts = (clean(given.reason), clean(given.key), dump(given.meta))
        return cls(id, 0, eid, given.call, given.name, given.source, given.value, *texts, at)

    def public(self, adapter: str | None) -> Reward:
        """``adapter``: the episode's."""
        other = {"episode": name_of(self.eid)[1], "key": self.idem, "meta": load(self.meta, {}), "at": self.ts}
        return Reward(**same_named(self, Reward) | other, adapter=adapter)


class PinRow(NamedTuple):
    """A row of ``t_pins``: which adapter answers an episode."""

    eid: str
    model: str
    adapter: str
    arm: str
    ts: float
    active: bool = True
    chances: str = ""


class GroupRow(NamedTuple):
    """A row of ``t_groups``: episodes that are compared, or the window around a single one."""

    id: str
    bucket: str
    ordinal: int
    kind: str
    key: str
    task: str | None
    model: str
    split: str
    state: str
    n: int
    created: float
    completed: float | None = None
    ready_at: float | None = None
    batch: str | None = None
    attempts: int = 0
    parked: bool = False
    retry_at: float | None = 0.0
    judge_lease: str | None = None
    judge_until: float | None = None
    judge_worker: str | None = None
    judge_last: str | None = None
    single: str | None = None
    cause: str | None = None
    """Why it is ``stale``, ``dropped`` or ``skipped``."""
    failure: str | None = None
    """Why the judge did not score it when it last tried."""
    again: int = 0
    """Times it is still to be trained on, however old its runs are: somebody asked for it."""
    kept: bool = False
    """It waited while the trainer's schedule was closed, so its runs are not too old."""


class BatchRow(NamedTuple):
    """A row of ``t_batches``: groups that a trainer leased together."""

    id: str
    lease: str
    worker: str
    model: str
    state: str
    until: float
    created: float
    adapter: str | None = None
    step: int | None = None
    reason: str | None = None


class MemberRow(NamedTuple):
    """A row of ``t_members``: an episode of a batch, its reward when it was leased, and what the trainer made of it."""

    batch: str
    grp: str
    eid: str
    reward: float | None = None
    advantage: float | None = None


CALL_COLUMNS = ", ".join(CallRow._fields)
REWARD_COLUMNS = ", ".join(RewardRow._fields)
GROUP_COLUMNS = ", ".join(GroupRow._fields)
BATCH_COLUMNS = ", ".join(BatchRow._fields)


class Written(NamedTuple):
    """When a record was written, by its machine's monotonic clock and by its wall clock."""

    boot: str
    tick: float
    at: float


@dataclass(slots=True)
class Changes:
    eps: dict[str, EpisodeRow] = field(default_factory=dict)
    """Episodes that the batch touches, as they will be."""
    stored: dict[str, EpisodeRow] = field(default_factory=dict)
    """Those of them that there were, as they were."""
    new: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    calls: dict[str, list[CallRow]] = field(default_factory=lambda: defaultdict(list))
    """Day → rows."""
    rewards: list[RewardRow] = field(default_factory=list)
    written: dict[str, Written] = field(default_factory=dict)
    """Reward → when it was written."""
    idem: set[tuple[str, str]] = field(default_factory=set)
    """(episode, idempotency key) of rewards that are stored."""
    rewarded: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    """Episodes that a user said something about."""
    late: set[str] = field(default_factory=set)
    """Episodes whose first call of a trained model, or whose first token, came after other calls."""
    turned: set[str] = field(default_factory=set)
    """Episodes that failed with a call of this batch, or are no failed runs any more."""
    done: dict[str, None] = field(default_factory=dict)
    """Episodes that end, in the order in which they do, for the groups."""
    reopened: set[str] = field(default_factory=set)
    """Episodes that had ended by idleness."""
    early: dict[str, float] = field(default_factory=dict)
    """Episodes that ended before their first call was read, and when."""
    gone: dict[str, None] = field(default_factory=dict)
    """Deleted in this batch: nothing that comes after counts."""
    dropped: list[tuple[str, str]] = field(default_factory=list)
    """(key, ``mark_of`` the episode) of each call and reward that came for a forgotten one."""
    retried: set[str] = field(default_factory=set)
    pins: dict[str, PinRow] = field(default_factory=dict)
    again: list[tuple[list[str], int, float]] = field(default_factory=list)
    """Groups to train on again, how often in all, and when that was asked."""
    begun: list[PinRow] = field(default_factory=list)
    """Of episodes whose first call is here, and where there was nothing to choose."""
    now: float = 0.0

    def learn(self, found: Mapping[str, EpisodeRow]) -> None:
        """These are stored so."""
        self.eps |= found
        self.stored |= {eid: copy(ep) for eid, ep in found.items()}
