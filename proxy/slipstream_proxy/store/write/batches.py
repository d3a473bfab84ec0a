"""The trainer's work: ready groups leased as one Arrow table, trained on once or handed back.

Its rows are ``contract.BATCH_COLUMNS``, one for each choice.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from slipstream.contract import (
    BATCH_COLUMNS,
    EXPLORE_TAG,
    SIBLING_TAG,
    SIBLINGS_TAG,
    BatchAck,
    BatchLeaseIn,
    Form,
    GroupKind,
    TaughtStep,
    TrainAgain,
    filter_of,
    words_in,
)
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.store.conversation.call_rows import CallList, choices_of, is_whole
from slipstream_proxy.store.conversation.calls import TOKEN_COLUMNS, CallTable
from slipstream_proxy.store.conversation.fingerprint import NO_IDS
from slipstream_proxy.store.learning.groups import (
    CORRECTED_CAUSE,
    EQUAL_REWARDS_CAUSE,
    NOTHING_TRAINABLE_CAUSE,
    RETRAINABLE_STATES,
    ROLLED_BACK,
    SKIPPED_CAUSE,
    STALE_STATE,
    WORDS_GROUP_PREFIX,
    Freshness,
    GroupTable,
    Loss,
    Times,
    TrainingAgain,
    adapters_of,
    lineage_of,
    taken_back,
    trained_times,
    training_again,
)
from slipstream_proxy.store.learning.rewards import LatestReward, RewardTable, combine_calls
from slipstream_proxy.store.tables.driver import IN, Driver, Tx
from slipstream_proxy.store.tables.rows import (
    BatchRow,
    CallRow,
    EpisodeRow,
    Floats,
    Ids,
    MemberRow,
    dump,
    eid_of,
    load,
    name_of,
    tombstone_of,
)
from slipstream_proxy.store.tables.tallies import STALE_RUNS, get_meta, set_meta
from slipstream_proxy.store.values import SAME_REWARD_DISTANCE, ArrowBatch, Name, Rules
from slipstream_proxy.store.write.learners import learner_of

log = logging.getLogger(__name__)
T = TypeVar("T")
NO_LOGPROBS: Floats = np.empty(0, np.float32)
BATCH_SCHEMA = pa.schema(
    {
        "group": pa.string(),
        "kind": pa.string(),
        "episode": pa.string(),
        "task": pa.string(),
        "call": pa.string(),
        "number": pa.int32(),
        "choice": pa.int32(),
        "adapter": pa.string(),
        "staleness": pa.int32(),
        "temperature": pa.float32(),
        "trainable": pa.bool_(),
        "untrainable_reason": pa.string(),
        "prompt_ids": pa.list_(pa.int32()),
        "completion_ids": pa.list_(pa.int32()),
        "logprobs": pa.list_(pa.float32()),
        "reward": pa.float64(),
        "call_reward": pa.float64(),
        "key": pa.string(),
        "filter": pa.list_(pa.float32()),
        "prefix_row": pa.int32(),
        "prefix_tokens": pa.int32(),
        "hint": pa.string(),
        "tags": pa.dictionary(pa.int32(), pa.string()),
    }
)


class TableRow(NamedTuple):
    """A row of a batch's table. One that has the defaults says a reward alone."""

    group: str
    kind: str
    episode: str
    task: str | None
    call: str = ""
    number: int = 0
    choice: int = 0
    adapter: str | None = None
    staleness: int = 0
    temperature: float | None = None
    trainable: bool = False
    untrainable_reason: str | None = None
    prompt_ids: Ids = NO_IDS
    completion_ids: Ids = NO_IDS
    logprobs: Floats = NO_LOGPROBS
    reward: float | None = None
    call_reward: float | None = None
    key: str = ""
    filter: Sequence[float] | None = None
    prefix_row: int | None = None
    prefix_tokens: int = 0
    hint: str | None = None
    tags: str | None = None


assert tuple(BATCH_SCHEMA.names) == TableRow._fields == BATCH_COLUMNS

UNTRAINED_OF = """split <> 'eval' AND state IN ('forming', 'waiting_reward', 'ready', 'leased')
    AND id IN (SELECT grp FROM t_episodes WHERE grp IS NOT NULL AND strpos(adapters, ?) > 0)"""
"""Groups that may still be trained on and have a run of an adapter."""

EQUAL_ROW = "zero_variance"
"""As the trainer calls it: nothing in its group to compare."""


class UserWords(NamedTuple):
    """What a user said, about one call or (None) all of them."""

    words: str
    call: str | None


@dataclass(slots=True)
class BatchEpisode:
    """An episode of a batch, with its group and its calls."""

    group: str
    kind: str
    task: str | None
    ep: EpisodeRow
    calls: list[CallRow] | None
    """None: they are left out, as its group's rewards are all equal."""
    call_rewards: dict[str, float]
    any_age: bool = False
    """It is trained on however old it is."""
    said: UserWords | None = None
    """What a user said: it is here for that alone."""


def _lists(parts: Sequence[npt.NDArray[np.generic]], kind: pa.DataType, dtype: str) -> pa.ListArray:
    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([len(p) for p in parts], out=offsets[1:])
    flat = np.concatenate(parts).astype(dtype, copy=False) if parts else np.empty(0, dtype)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, kind))


def batch_table(episodes: Sequence[BatchEpisode], fresh: Freshness, form: Form = "auto") -> pa.Table:
    """A row for each choice of each call that ended well, in order of group, episode, call, choice.

    An episode without such a call has one row that cannot be trained on (``no_call``; ``zero_variance`` where its calls
    are left out): its reward counts in its group's baseline. In deltas a prompt's row holds what comes after the row
    that it begins with (``prefix_row``).
    """
    rows: list[TableRow] = []
    for member in episodes:
        if member.calls is None:
            rows.append(_reward_alone(member, EQUAL_ROW))
            continue
        whole = is_whole(form, len(member.calls))
        rows += _choices(member, member.calls, fresh, len(rows), whole=whole) or [_reward_alone(member, "no_call")]
    columns = list(zip(*rows, strict=True)) or [()] * len(BATCH_COLUMNS)
    arrays = []
    for column, values in zip(BATCH_SCHEMA, columns, strict=True):
        if pa.types.is_list(column.type) and column.name != "filter":
            dtype = "<f4" if column.name == "logprobs" else "<i4"
            arrays.append(_lists(values, column.type.value_type, dtype))
        else:
            arrays.append(pa.array(values, column.type))
    return pa.Table.from_arrays(arrays, schema=BATCH_SCHEMA)


def _choices(
    member: BatchEpisode, calls: list[CallRow], fresh: Freshness, first: int, *, whole: bool
) -> list[TableRow]:
    """``first``: the number of the table's row that comes next."""
    rows: list[TableRow] = []
    run = CallList(calls)
    tags = _tags_of(member.ep)
    placed: dict[str, int] = {}
    """Call → the row of its first choice."""
    for call in calls:
        if call.outcome != "ok" or (member.said is not None and member.said.call not in (None, call.id)):
            continue
        staleness = fresh.staleness(call.adapter)
        stale = call.trainable and not member.any_age and not fresh.trainable(call.adapter)
        found, ids = run.anchored_ids(call, (lambda _: False) if whole else (lambda base: base.id in placed))
        before, keep = (placed[found.base.id], found.keep) if found.base is not None and found.keep else (None, 0)
        cut = filter_of(load(call.sampling, {})) if call.trainable else None
        for choice, (sampled, logprobs) in enumerate(choices_of(call)):
            rows.append(
                TableRow(
                    group=member.group,
                    kind=member.kind,
                    episode=member.ep.id,
                    task=member.task,
                    call=call.id,
                    number=call.number,
                    choice=choice,
                    adapter=call.adapter,
                    staleness=staleness,
                    temperature=call.temperature,
                    trainable=call.trainable and not stale,
                    untrainable_reason=STALE_STATE if stale else call.reason,
                    prompt_ids=ids,
                    completion_ids=sampled,
                    logprobs=logprobs,
                    reward=member.ep.reward,
                    call_reward=member.call_rewards.get(call.id),
                    key=member.ep.key,
                    filter=cut,
                    prefix_row=before,
                    prefix_tokens=keep,
                    hint=member.said.words if member.said else None,
                    tags=tags,
                )
            )
            if not whole and not choice:
                placed[call.id] = before = first + len(rows) - 1
                keep, ids = keep + len(ids), NO_IDS  # the other choices begin with the first one's prompt
    return rows


def _reward_alone(member: BatchEpisode, reason: str) -> TableRow:
    ep = member.ep
    row = TableRow(member.group, member.kind, ep.id, member.task, untrainable_reason=reason)
    return row._replace(reward=ep.reward, key=ep.key, tags=_tags_of(ep))


def _tags_of(ep: EpisodeRow) -> str | None:
    found: dict[str, str] = load(ep.tags, {})
    told = {name: found[name] for name in sorted(found) if name not in (EXPLORE_TAG, SIBLING_TAG, SIBLINGS_TAG)}
    return dump(told) if told else None


def broken_groups(episodes: Sequence[BatchEpisode], fresh: Freshness) -> list[str]:
    """Those of which no table can be made."""
    groups: dict[str, list[BatchEpisode]] = defaultdict(list)
    for member in episodes:
        groups[member.group].append(member)
    found = []
    for group, members in groups.items():
        try:
            batch_table(members, fresh, "whole")
        except Exception:
            found.append(group)
    return found


BATCH_OUTCOMES = ("trained", "skipped", "released")
LEAST_RUNS = 8
"""Runs of groups that teach, in a batch that has waited ``max_wait``. A step from fewer moves next to nothing."""
FLOOD_SECONDS = 5.0
"""Since the newest group was ready: while groups follow one another so closely, more are on their way."""
MUCH_LONGER = 4
"""Times ``max_wait`` after which fewer are a batch as well."""
ONE_OF_A_RUN = """id IN
    (SELECT min(id) FROM t_groups WHERE state = 'ready' AND kind = 'words' AND split <> 'eval' GROUP BY single)
    AND NOT EXISTS (SELECT 1 FROM t_episodes e WHERE e.eid = t_groups.single AND e.state = 'open')"""
"""Of what is said about a run, the oldest alone, and only once the run is over."""
TAKEN_OVER_REASON = "another trainer took over before a version was made from it"
PILE_FACTOR = 4
"""Times ``max_groups`` of groups that teach nothing, which go by themselves. As many are looked at, and a few more."""


class ReadyGroup(NamedTuple):
    """A group that a trainer may lease."""

    id: str
    key: str
    ready_at: float
    kind: str
    task: str | None
    created: float
    completed: float | None
    judge_last: str | None
    again: int = 0
    kept: bool = False

    @property
    def any_age(self) -> bool:
        """Its runs are not too old, whatever their version."""
        return self.again > 0 or self.kept

    @property
    def words(self) -> bool:
        """It is one episode and what a user said about it."""
        return self.kind == GroupKind.WORDS

    def waited_for(self, now: float) -> str:
        """What it has waited for longest."""
        return Times(self.created, self.completed, self.ready_at, self.judge_last).longest(now)


def share_out(groups: Sequence[tuple[str, str]], most: int, share: float) -> list[str]:
    """The oldest ``most`` of (group, key). One key gets at most ``share`` × ``most`` where other keys wait too."""
    keys = {key for _, key in groups}
    cap = most if len(keys) < 2 else max(1, int(share * most))
    taken: dict[str, int] = defaultdict(int)
    chosen: list[str] = []
    for group, key in groups:
        if len(chosen) < most and taken[key] < cap:
            taken[key] += 1
            chosen.append(group)
    return chosen


def hard_first(groups: Sequence[T], rarity: Mapping[T, float]) -> list[T]:
    """``groups``, the oldest first: every other place is for the one whose good runs are the rarest. The places between
    are for the oldest, so that none waits until it is too old.
    """
    hard = iter(sorted(groups, key=lambda g: -rarity[g]))
    taken: dict[T, None] = {}
    for group in groups:
        taken.setdefault(group)
        if (rarest := next((g for g in hard if g not in taken), None)) is not None:
            taken[rarest] = None
    return list(taken)


def rarity_of(members: Sequence[EpisodeRow]) -> float:
    """How far the mean reward of a group lies below its best one, as a share of its range. 0: all are equal."""
    rewards = [ep.reward for ep in members if ep.reward is not None]
    if not rewards or max(rewards) == min(rewards):
        return 0.0
    return (max(rewards) - sum(rewards) / len(rewards)) / (max(rewards) - min(rewards))


def is_equal(members: Sequence[EpisodeRow]) -> bool:
    """Whether all have the same reward, so that there is nothing to compare."""
    rewards = [ep.reward for ep in members if ep.reward is not None]
    return not rewards or (len(rewards) == len(members) and max(rewards) - min(rewards) < SAME_REWARD_DISTANCE)


class Chosen(NamedTuple):
    """Groups that a batch is made of."""

    groups: list[ReadyGroup]
    members: dict[str, list[EpisodeRow]]
    bare: set[str]
    """Those that come without their calls."""
    said: dict[str, UserWords]


class BatchQueue:
    def __init__(self, db: Driver, rules: Rules, groups: GroupTable, calls: CallTable, rewards: RewardTable) -> None:
        self.db = db
        self.rules = rules
        self.groups = groups
        self.calls = calls
        self.rewards = rewards

    # leases

    def lease(self, wanted: BatchLeaseIn, versions: dict[str, int], live: int, now: float) -> ArrowBatch | None:
        """``versions``: adapter → its version; ``live``: the live one's.

        A run that is more than ``max_staleness`` behind keeps its reward in the baseline of its group and is not
        trained on.
        """
        with self.db.write(serial=False) as tx:
            self.expire(tx, now)
            model = wanted.model or self._fullest(tx)
            if model is None:
                return None
            fresh = Freshness(versions, live, wanted.max_staleness, taken_back(tx))
            chosen = None if wanted.stored else self._next(tx, wanted, model, fresh, now, again=False)
            chosen = chosen or self._next(tx, wanted, model, fresh, now, again=True)
            if chosen is None:
                return None
            leased = [(g, ep) for g in chosen.groups for ep in chosen.members[g.id]]
            batch, lease = f"b{int(now * 1000):013d}-{uuid4().hex[:8]}", uuid4().hex
            until = now + wanted.seconds
            tx.insert("t_batches", [BatchRow(batch, lease, wanted.worker, model, "leased", until, now)])
            sql = f"UPDATE t_groups SET state = 'leased', batch = ?, cause = NULL WHERE id {IN}"
            tx.run(sql, (batch, [g.id for g in chosen.groups]))
            self._note(tx, leased, fresh)
            tx.insert("t_members", [MemberRow(batch, g.id, ep.eid, ep.reward) for g, ep in leased])
            credit = self.rules.credit == "call"
            latest = self.rewards.latest(tx, [ep.eid for _, ep in leased]) if credit else {}
        # Outside the transaction: what is read below does not change any more, and the ingester need not wait for it.
        found: list[BatchEpisode] = []
        try:
            found = self._found(chosen, leased, latest)
            return ArrowBatch(batch, lease, until, batch_table(found, fresh, wanted.form))
        except Exception as e:
            if not self._give_up(batch, broken_groups(found, fresh), e):
                raise
        return self.lease(wanted, versions, live, now)

    def _found(
        self,
        chosen: Chosen,
        leased: Sequence[tuple[ReadyGroup, EpisodeRow]],
        latest: Mapping[str, Sequence[LatestReward]],
    ) -> list[BatchEpisode]:
        with self.db.read() as tx:
            calls = self.calls.rows(tx, [ep for g, ep in leased if g.id not in chosen.bare], TOKEN_COLUMNS)
        return [
            BatchEpisode(
                g.id,
                g.kind,
                g.task,
                ep,
                None if g.id in chosen.bare else calls[ep.eid],
                {} if g.words else combine_calls(self.rules, latest.get(ep.eid, ())),
                g.any_age,
                chosen.said.get(g.id),
            )
            for g, ep in leased
        ]

    def _give_up(self, batch: str, broken: Collection[str], why: Exception) -> bool:
        """A batch that cannot be built is none: its groups are free again. Those that are broken are left out for good.

        → Whether there were such.
        """
        with self.db.write(serial=False) as tx:
            self.groups.lose(tx, dict.fromkeys(broken, Loss("dropped", NOTHING_TRAINABLE_CAUSE)))
            tx.run("UPDATE t_batches SET state = 'expired' WHERE id = ?", (batch,))
            self._hand_back(tx)
        if broken:
            log.error("no batch can be made of %s, so they are left out: %r", ", ".join(broken), why)
        return bool(broken)

    @staticmethod
    def _said(tx: Tx, groups: Sequence[str]) -> dict[str, UserWords]:
        """What users said, by group."""
        if not groups:
            return {}
        sql = f"SELECT id, name, meta, call FROM t_rewards WHERE id {IN}"
        rows = tx.all(sql, ([group.removeprefix(WORDS_GROUP_PREFIX) for group in groups],))
        found = {reward: (words_in(name, load(meta, {})), call) for reward, name, meta, call in rows}
        return {
            f"{WORDS_GROUP_PREFIX}{reward}": UserWords(words, call) for reward, (words, call) in found.items() if words
        }

    def _next(
        self, tx: Tx, wanted: BatchLeaseIn, model: str, fresh: Freshness, now: float, *, again: bool
    ) -> Chosen | None:
        """The groups of the next batch, the oldest first and, if more wait, hard ones; None: it is not due.

        ``again``: of those that somebody asked to train on again. They wait for nothing.
        """
        again_is = f"again {'>' if again else '='} 0"
        ready: list[ReadyGroup] = []
        for which in ("kind <> 'words'", ONE_OF_A_RUN):  # apart, so that neither keeps the others from being looked at
            sql = f"""SELECT {", ".join(ReadyGroup._fields)} FROM t_groups
                WHERE state = 'ready' AND split <> 'eval' AND model = ? AND {again_is} AND {which}
                ORDER BY ready_at, created, id LIMIT ?{self.db.lock_rows}"""
            ready += [ReadyGroup(*r) for r in tx.all(sql, (model, 4 * wanted.max_groups + 64))]
        ready.sort(key=lambda g: (g.ready_at, g.created, g.id))
        members = self.groups.members(tx, [g.id for g in ready])
        said = self._said(tx, [g.id for g in ready if g.words])
        self.groups.lose(
            tx, {g.id: Loss("dropped", NOTHING_TRAINABLE_CAUSE) for g in ready if g.words and g.id not in said}
        )
        ready = [g for g in ready if not g.words or g.id in said]
        ready = self._usable(tx, ready, members, fresh, now)
        bare = self._equal(ready, members) if wanted.equal == "rewards" else set()
        ready = ready if again else self._due(tx, wanted, ready, members, bare, fresh, now)
        if not ready:
            return None
        bare &= {g.id for g in ready}
        whole = [(g.id, g.key) for g in ready if g.id not in bare and not g.words]
        if len(whole) > wanted.max_groups:  # more than a step takes
            whole = hard_first(whole, {name: rarity_of(members[name[0]]) for name in whole})
        taken = {*share_out(whole, wanted.max_groups, self.rules.key_share), *bare}
        words = {members[g.id][0].eid: (g.id, g.key) for g in ready if g.words}
        """Episode → the words about it. An episode is in a batch once."""
        for group in taken:
            for ep in members[group]:
                words.pop(ep.eid, None)
        taken |= {*share_out(list(words.values()), LEAST_RUNS * wanted.max_groups, self.rules.key_share)}
        return Chosen([g for g in ready if g.id in taken], members, bare, said)

    def _fullest(self, tx: Tx) -> str | None:
        """The model with the most ready groups."""
        sql = """SELECT model FROM t_groups WHERE state = 'ready' AND split <> 'eval'
            GROUP BY model ORDER BY count(*) DESC, model LIMIT 1"""
        found = tx.all(sql)
        return found[0][0] if found else None

    def _usable(
        self, tx: Tx, ready: Sequence[ReadyGroup], members: dict[str, list[EpisodeRow]], fresh: Freshness, now: float
    ) -> list[ReadyGroup]:
        """Groups in which nothing can be trained on are settled, with the cause. → The others."""
        losses = {
            g.id: loss
            for g in ready
            if (loss := (fresh.any_age() if g.any_age else fresh).loss(members[g.id], g.waited_for(now)))
        }
        self.groups.lose(tx, losses)
        return [g for g in ready if g.id not in losses]

    def _due(
        self,
        tx: Tx,
        wanted: BatchLeaseIn,
        ready: list[ReadyGroup],
        members: dict[str, list[EpisodeRow]],
        bare: set[str],
        fresh: Freshness,
        now: float,
    ) -> list[ReadyGroup]:
        """Those that a batch is made of now: enough groups teach, or the oldest of them has waited long enough.

        ``bare`` ones teach nothing. By themselves they are a batch too, so that they do not pile up.
        """
        teaching = [g for g in ready if g.id not in bare]
        waited = now - min((g.ready_at for g in teaching), default=now)
        runs = LEAST_RUNS if wanted.equal == "whole" else sum(len(members[g.id]) for g in teaching)
        long = wanted.max_wait if runs >= LEAST_RUNS else MUCH_LONGER * wanted.max_wait
        words = sum(g.words for g in teaching)  # one episode each, where a group has about eight
        enough = len(teaching) - words + words // LEAST_RUNS >= wanted.min_groups
        alone = [g for g in ready if g.id in bare]
        flooded = enough and self._flooded(tx, wanted, teaching, len(alone), members, fresh, now)
        if (enough and not flooded) or (teaching and waited >= long):
            return ready
        waited = now - min((g.ready_at for g in alone), default=now)
        pile = len(alone) >= PILE_FACTOR * wanted.max_groups
        return alone if pile or (alone and not teaching and waited >= wanted.max_wait) else []

    @staticmethod
    def _flooded(
        tx: Tx,
        wanted: BatchLeaseIn,
        teaching: Sequence[ReadyGroup],
        bare: int,
        members: dict[str, list[EpisodeRow]],
        fresh: Freshness,
        now: float,
    ) -> bool:
        """Whether rewards come in a flood, as after a judge's outage: each step makes all that waits a version older,
        so small steps would leave most of it too old. The batch is then worth waiting for. ``bare``: groups that teach
        nothing. Where few teach, many of those wait, and a step loses nothing by leaving them.
        """
        newest = max((g.ready_at for g in teaching), default=now)
        if len(teaching) >= wanted.max_groups or now - newest > FLOOD_SECONDS:
            return False
        sql = """SELECT state, count(*) FROM t_groups WHERE state IN ('waiting_reward', 'ready') AND NOT parked
            AND split <> 'eval' AND kind <> 'words' AND again = 0 GROUP BY state"""
        found: dict[str, int] = dict(tx.all(sql))
        unscored = found.get("waiting_reward", 0) * len(teaching) / max(1, len(teaching) + bare)
        waiting = found.get("ready", 0) - bare + unscored
        ages = (fresh.staleness(ep.adapter) for g in teaching for ep in members[g.id])
        steps_left = wanted.max_staleness + 1 - max((age for age in ages if age <= wanted.max_staleness), default=0)
        return bool(len(teaching) < math.ceil(waiting / steps_left))

    def _equal(self, ready: Sequence[ReadyGroup], members: dict[str, list[EpisodeRow]]) -> set[str]:
        """Groups in which there is nothing to compare. Those of other kinds than ``task`` share a baseline."""
        if self.rules.credit == "call":
            return set()
        return {g.id for g in ready if g.kind == GroupKind.TASK and is_equal(members[g.id])}

    def _note(self, tx: Tx, leased: Sequence[tuple[ReadyGroup, EpisodeRow]], fresh: Freshness) -> None:
        """Count what a batch holds and does not learn from: runs that are too old, groups with equal rewards."""
        members: dict[str, list[EpisodeRow]] = defaultdict(list)
        for group, ep in leased:
            members[group.id].append(ep)
        equal = [g for g, eps in members.items() if is_equal(eps) and not g.startswith(WORDS_GROUP_PREFIX)]
        if equal and self.rules.credit != "call":
            tx.run(f"UPDATE t_groups SET cause = ? WHERE id {IN}", (EQUAL_REWARDS_CAUSE, equal))
        aged = {g.id for g, _ in leased if not g.any_age}
        if stale := sum(fresh.stale_runs(eps) for g, eps in members.items() if g in aged):
            set_meta(tx, STALE_RUNS, str(int(get_meta(tx, STALE_RUNS) or 0) + stale))

    # leases that end

    def next_expired(self, tx: Tx) -> float:
        """When the first lease runs out; infinite: there is none."""
        ((first,),) = tx.all("SELECT min(until) FROM t_batches WHERE state = 'leased'")
        return math.inf if first is None else float(first)

    def expire(self, tx: Tx, now: float) -> None:
        """Leases that ran out: their groups are ready again. An ack is still taken until another lease has them."""
        if tx.run("UPDATE t_batches SET state = 'expired' WHERE state = 'leased' AND until < ?", (now,)):
            self._hand_back(tx)

    def release(self, tx: Tx, worker: str) -> int:
        """What a worker had leased is free at once. → Leases released."""
        sql = "UPDATE t_batches SET state = 'expired' WHERE state = 'leased' AND worker = ?"
        count = tx.run(sql, (worker,))
        self._hand_back(tx)
        return count

    def leased_of(self, model: str) -> list[tuple[str, str]]:
        """Batches of a model that a trainer has: (id, lease)."""
        with self.db.read() as tx:
            sql = "SELECT id, lease FROM t_batches WHERE state = 'leased' AND model = ? ORDER BY id"
            return [(batch, lease) for batch, lease in tx.all(sql, (model,))]

    def take_back(self, model: str, steps: Collection[str], made: Collection[str], now: float) -> int:
        """The trainer of a model is another one from now on: what the one before had comes back, and ``steps``, the
        trained batches of which there is no version. Those in ``made`` are in one. → Groups that come back.
        """
        with self.db.write() as tx:
            sql = "SELECT id FROM t_batches WHERE state = 'leased' AND model = ?"
            back = [batch for (batch,) in tx.all(sql, (model,)) if batch not in set(made)]
            sql = f"UPDATE t_batches SET state = 'released', reason = ? WHERE id {IN}"
            tx.run(sql, (TAKEN_OVER_REASON, [*back, *steps]))
            return tx.run(
                f"""UPDATE t_groups SET state = 'ready', kept = TRUE, cause = NULL, ready_at = ?
                WHERE state IN ('leased', 'trained') AND batch {IN}""",
                (now, [*back, *steps]),
            )

    def _hand_back(self, tx: Tx) -> None:
        tx.run(
            """UPDATE t_groups SET state = 'ready' WHERE state = 'leased'
            AND batch IN (SELECT id FROM t_batches WHERE state = 'expired')"""
        )

    def takes(self, batch: str, ack: BatchAck) -> JsonObject | None:
        """Whether the trainer's word on a batch counts. None: its lease is another's by now (409).

        → ``members`` of its mutation, ``{"model", "groups": [id], "episodes": [[key, episode, group, reward]]}``: with
        them a rebuilt store knows what was trained on (``apart``: without a lease, and its groups stay as they are).
        Nothing, if the same was said before.
        """
        with self.db.read() as tx:
            found = tx.all("SELECT lease, state, model FROM t_batches WHERE id = ?", (batch,))
            if not found or found[0][0] != ack.lease:
                return None
            _, state, model = found[0]
            if state in BATCH_OUTCOMES:
                return {} if state == ack.outcome else None
            if self._is_leased_again(tx, batch):
                return None
            rows = tx.all("SELECT grp, eid, reward FROM t_members WHERE batch = ? ORDER BY grp, eid", (batch,))
        return {
            "model": model,
            "groups": list(dict.fromkeys(g for g, _, _ in rows)),
            "episodes": [[*name_of(eid), g, reward] for g, eid, reward in rows],
        }

    def replay(self, tx: Tx, batch: str, ack: BatchAck, members: JsonObject | None, now: float) -> None:
        """An ack that was accepted before. If the store has been rebuilt since, ``members`` name what the batch was."""
        found = tx.all("SELECT state, model FROM t_batches WHERE id = ?", (batch,))
        if found:
            if self._is_fenced(tx, ack, found[0][1]):
                return
            if found[0][0] not in BATCH_OUTCOMES and not self._is_leased_again(tx, batch):
                self._write_outcome(tx, batch, ack, now)
            return
        known = members or {}
        tx.insert("t_batches", [BatchRow(batch, ack.lease, "", known.get("model") or "", "expired", now, now)])
        named = known.get("episodes", ())
        rows = [MemberRow(batch, group, f"{key}/{episode}", *reward) for key, episode, group, *reward in named]
        tombstones = {tombstone_of(row.eid): row.eid for row in rows}
        sql = f"SELECT eid FROM t_episodes WHERE state = 'deleted' AND eid {IN}"
        gone = {tombstones[tombstone]: tombstone for (tombstone,) in (tx.all(sql, (list(tombstones),)) if rows else ())}
        rows = [row._replace(eid=gone.get(row.eid, row.eid)) for row in rows]
        tx.insert("t_members", rows)
        if rows and "apart" not in known:
            # Only what trains is settled for good; a group of the rebuilt store may be another cut of the same
            # episodes.
            said = [r.grp for r in rows if r.grp.startswith(WORDS_GROUP_PREFIX)]
            tx.run(
                f"""UPDATE t_groups SET batch = ? WHERE state IN ('ready', 'waiting_reward')
                AND (id {IN} OR id IN (SELECT grp FROM t_episodes WHERE eid {IN}))""",
                (batch, said, [r.eid for r in rows if not r.grp.startswith(WORDS_GROUP_PREFIX)]),
            )
        self._write_outcome(tx, batch, ack, now)

    def _is_fenced(self, tx: Tx, ack: BatchAck, model: str) -> bool:
        """Whether another trainer took over after the ack was accepted by another proxy: it has no version, and only
        the trainer before has its weights.
        """
        if not self.db.shared or ack.learner is None or ack.adapter is not None or ack.outcome != "trained":
            return False
        row = learner_of(tx, model)
        return row is not None and ack.learner not in row.tokens

    def _is_leased_again(self, tx: Tx, batch: str) -> bool:
        sql = """SELECT 1 FROM t_groups WHERE batch <> ?
            AND id IN (SELECT grp FROM t_members WHERE batch = ?) LIMIT 1"""
        return bool(tx.all(sql, (batch, batch)))

    def _write_outcome(self, tx: Tx, batch: str, ack: BatchAck, now: float) -> None:
        after = {"trained": "trained", "skipped": "skipped", "released": "ready"}[ack.outcome]
        waiting = "'leased', 'ready', 'waiting_reward'" if after == "trained" else "'leased', 'ready'"
        sql = f"UPDATE t_groups SET state = ?, cause = coalesce(cause, ?) WHERE batch = ? AND state IN ({waiting})"
        tx.run(sql, (after, SKIPPED_CAUSE if after == "skipped" else None, batch))
        if after != "ready":
            # what is to be trained on more often goes to the end of the line
            sql = """UPDATE t_groups SET state = CASE WHEN again > 1 AND state = 'trained' THEN 'ready' ELSE state END,
                ready_at = CASE WHEN again > 1 AND state = 'trained' THEN ? ELSE ready_at END,
                again = CASE WHEN state = 'trained' THEN greatest(again - 1, 0) ELSE 0 END,
                kept = FALSE WHERE batch = ? AND state IN ('trained', 'skipped') AND (again > 0 OR kept)"""
            tx.run(sql, (now, batch))
        adapter = ack.adapter
        if adapter is None and ack.outcome == "trained":  # its version may be here before its ack
            adapter = min(adapters_of(tx, [batch]), default=None)
        tx.run(
            "UPDATE t_batches SET state = ?, adapter = ?, step = ?, reason = ? WHERE id = ?",
            (ack.outcome, adapter, ack.step, ack.reason, batch),
        )
        self._note_words(tx, ack)
        if ack.advantages:
            eids = [eid for (eid,) in tx.all("SELECT eid FROM t_members WHERE batch = ?", (batch,))]
            named = {eid: ack.advantages.get(eid, ack.advantages.get(name_of(eid)[1])) for eid in eids}
            found = [(batch, eid, advantage) for eid, advantage in named.items() if advantage is not None]
            tx.update("t_members", ("batch", "eid"), ("advantage",), found)

    @staticmethod
    def _note_words(tx: Tx, ack: BatchAck) -> None:
        """What users' words changed, beside the words."""
        if ack.words:
            changed = {group.removeprefix(WORDS_GROUP_PREFIX): calls for group, calls in ack.words.items()}
            rows = tx.all(f"SELECT id, meta FROM t_rewards WHERE id {IN}", (list(changed),))
            told = [(i, dump({**load(meta), "taught": changed[i]})) for i, meta in rows]
            tx.update("t_rewards", ("id",), ("meta",), told)

    # trained on again

    def plan_again(self, names: Collection[Name], epochs: int) -> tuple[list[str], TrainAgain]:
        """Groups of these episodes that were trained on less than ``epochs`` times, and what becomes of the others."""
        with self.db.read() as tx:
            eids = [eid_of(*name) for name in names]
            sql = f"SELECT DISTINCT grp FROM t_episodes WHERE grp IS NOT NULL AND eid {IN}"
            groups = [group for (group,) in tx.all(sql, (eids,))] if eids else []
            sql = f"SELECT id, kind, split, state, cause FROM t_groups WHERE id {IN}"
            rows = tx.all(sql, (groups,)) if groups else []
            members, times = self.groups.members(tx, groups), trained_times(tx, groups)
        passes: dict[str, int] = {}
        left_out, corrected = Counter[str](), 0
        for group, kind, split, state, cause in rows:
            why = self._why_not(kind, split, state, cause, members[group])
            if why is None and times.get(group, 0) >= epochs:
                why = "trained"
            if why is not None:
                left_out[why] += 1
                continue
            passes[group] = epochs - times.get(group, 0)
            corrected += cause == CORRECTED_CAUSE
        plan = TrainAgain(
            groups=len(passes),
            passes=sum(passes.values()),
            episodes=sum(len(members[group]) for group in passes),
            corrected=corrected,
            left_out=dict(left_out),
        )
        return sorted(passes), plan

    def trained_on(self, names: Collection[Name]) -> list[str]:
        """Adapters that were trained on one of these episodes."""
        with self.db.read() as tx:
            found = lineage_of(tx, [eid_of(*name) for name in names])
            return sorted(adapters_of(tx, {r.batch for rows in found.values() for r in rows if r.state == "trained"}))

    def adapters_of(self, batches: Collection[str]) -> set[str]:
        """Adapters that were trained on one of these batches."""
        with self.db.read() as tx:
            return adapters_of(tx, batches)

    def unpublished(self, published: Mapping[str, int]) -> list[TaughtStep]:
        """Batches that the trainer has, and steps that no version has yet. ``published``: model → the newest version's
        step. What was taken before that step is in a version, or the trainer has dropped it.
        """
        sql = """SELECT model, id, CASE WHEN state = 'trained' THEN step END FROM t_batches
            WHERE state = 'leased' OR (state = 'trained' AND adapter IS NULL) ORDER BY step, created, id"""
        with self.db.read() as tx:
            found = [TaughtStep(model=model, batch=batch, step=step) for model, batch, step in tx.all(sql)]
        return [s for s in found if s.step is None or s.step > published.get(s.model, 0)]

    def with_forgotten(self, batches: Collection[str]) -> dict[str, int]:
        """Those of these batches of which episodes were forgotten after the lease → how many."""
        with self.db.read() as tx:
            sql = f"SELECT batch, eid FROM t_members WHERE batch {IN} AND strpos(eid, '/forgotten-') > 0"
            rows = tx.all(sql, (list(batches),)) if batches else []
            sql = f"SELECT eid FROM t_episodes WHERE state = 'deleted' AND eid {IN}"
            gone = {eid for (eid,) in tx.all(sql, (list({eid for _, eid in rows}),))} if rows else set()
        return dict(Counter(batch for batch, eid in rows if eid in gone))

    def plan_anew(self, batches: Collection[str], without: Collection[Name]) -> tuple[dict[int, list[str]], TrainAgain]:
        """Epochs → groups of these batches, each to be trained on once more; and what becomes of the others. Groups
        with an episode of ``without`` are left out (``named``).
        """
        with self.db.read() as tx:
            sql = f"SELECT DISTINCT grp FROM t_members WHERE batch {IN}"
            groups = [group for (group,) in tx.all(sql, (list(batches),))] if batches else []
            sql = f"SELECT id, kind, split, state, cause FROM t_groups WHERE id {IN}"
            rows = tx.all(sql, (groups,)) if groups else []
            members, times = self.groups.members(tx, groups), trained_times(tx, groups)
        named, left_out, epochs = {eid_of(*name) for name in without}, Counter[str](), defaultdict[int, list[str]](list)
        for group, kind, split, state, cause in rows:
            why = self._why_not(kind, split, state, cause, members[group])
            if any(ep.eid in named for ep in members[group]):
                why = "named"
            if why is not None:
                left_out[why] += 1
            else:
                epochs[times.get(group, 0) + 1].append(group)
        chosen = [group for found in epochs.values() for group in found]
        episodes = sum(len(members[group]) for group in chosen)
        count = len(chosen)
        return epochs, TrainAgain(groups=count, passes=count, episodes=episodes, corrected=0, left_out=dict(left_out))

    def _why_not(
        self, kind: str, split: str, state: str, cause: str | None, members: Sequence[EpisodeRow]
    ) -> str | None:
        if split != "train":
            return split
        if state not in RETRAINABLE_STATES:
            return state if cause is None else cause
        if any(ep.reward is None or ep.state != "done" for ep in members):
            return "not_scored"
        if not any(load(ep.adapters) for ep in members):
            return NOTHING_TRAINABLE_CAUSE
        return (
            EQUAL_REWARDS_CAUSE
            if self.rules.credit != "call" and kind == GroupKind.TASK and is_equal(members)
            else None
        )

    def again(self) -> TrainingAgain:
        with self.db.read() as tx:
            return training_again(tx)

    def keep_waiting(self) -> int:
        """What waits has waited for the trainer's schedule: its runs are not too old. → Groups."""
        with self.db.write() as tx:
            return tx.run(
                """UPDATE t_groups SET kept = TRUE WHERE state IN ('forming', 'waiting_reward', 'ready')
                AND split <> 'eval' AND NOT kept AND again = 0"""
            )

    def untrained_of(self, adapter: str) -> int:
        """Groups that ``drop_adapter`` would drop."""
        with self.db.read() as tx:
            return int(tx.all(f"SELECT count(*) FROM t_groups WHERE {UNTRAINED_OF}", (f'"{adapter}"',))[0][0])

    def drop_adapter(self, adapter: str) -> int:
        """Groups with episodes sampled from an adapter that was taken back never train. → Groups dropped."""
        with self.db.write() as tx:
            sql = f"UPDATE t_groups SET state = 'dropped', cause = ?, again = 0 WHERE {UNTRAINED_OF}"
            return tx.run(sql, (ROLLED_BACK, f'"{adapter}"'))
