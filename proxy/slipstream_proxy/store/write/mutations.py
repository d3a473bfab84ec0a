"""Mutations out of the spool: what the control API accepted, applied in order.

An exported episode is put back whole: ids, tokens, log-probabilities, rewards, group, and what was trained on it.

Sets of cases: copies of episodes that a new version is tried on before it goes live.

A copy is made when an episode is added, so that retention does not end it and a set stays what it was. A set has a
version, which grows with each change. Each row says from which version on it belongs to the set, and at which it left.
Forgetting an episode deletes its copies from every version.

``Mutation.data`` by ``op`` (key: the API key's id, episode: the client's id). All are idempotent, by mutation id and by
what they hold:

- ``reward``  ``{"key", "episode", "reward": RewardIn}``
- ``done``    ``{"key", "episode"}``
- ``delete``  ``{"key": id | None, "episode"}``, or of many ``{"episodes": [[key, episode]], "marks": [[key, mark]]}``;
  once no file holds these episodes, the marks alone (``rows.mark_of``)
- ``scores``  ``{"group", "scores": ScoresIn, "key": optional}``: ``judging.holds`` said that they are taken
- ``ack``     ``{"batch", "ack": BatchAck, "members": batches.takes(batch, ack)}``
- ``again``   ``{"groups": [id], "epochs"}``: groups to train on until they were so often; none: no group any more
- ``adapter`` ``Adapter``;  ``event`` ``Event``;  ``audit`` ``AuditEntry``
- ``cache``   ``{"key", "value", "at", "newest": optional}``: a value by its name. ``newest``, ``[prefix, count]``: of
  the names that begin so, only so many stay
- ``pin``     ``{"key", "episode", "model", "adapter", "arm", "chances": optional}``
- ``episode`` ``{"key", "episode", "days", "text"}``: an exported episode as JSON text, and the days of its calls
- ``case``    ``{"set", "version", "key", "episode", "text"}``: an episode's copy joins a set; ``uncase``, without the
  text: it leaves it; ``caseset`` ``{"set"}``: the set goes
- ``blank``   ``{}``: stands where a record was that is forgotten
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import ValidationError

from slipstream.contract import (
    Adapter,
    AuditEntry,
    BatchAck,
    CallRecord,
    Case,
    CasePage,
    CaseSet,
    EpisodeDetail,
    Event,
    RewardIn,
    ScoresIn,
    words_in,
)
from slipstream.shared.prefixes import Conversations
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.log.records import CallHead, Choice, Mutation, Parsed, mark_of
from slipstream_proxy.store.conversation.call_rows import left_out_reason
from slipstream_proxy.store.conversation.calls import CallTable
from slipstream_proxy.store.conversation.failures import error_of_run
from slipstream_proxy.store.learning.adapters import AdapterTable
from slipstream_proxy.store.learning.groups import GroupTable, alike_of, group_of, line_of
from slipstream_proxy.store.learning.rewards import RewardTable
from slipstream_proxy.store.tables import schema
from slipstream_proxy.store.tables.driver import IN, Driver, Tx
from slipstream_proxy.store.tables.memory import Memory
from slipstream_proxy.store.tables.rows import (
    BatchRow,
    CallRow,
    Changes,
    EpisodeRow,
    GroupRow,
    MemberRow,
    PinRow,
    RewardRow,
    Written,
    clean,
    dump,
    eid_of,
    load,
    name_of,
)
from slipstream_proxy.store.tables.small import AuditLog, CacheTable, EventLog
from slipstream_proxy.store.values import Name, RecordedCall, Rules
from slipstream_proxy.store.write.batches import BatchQueue
from slipstream_proxy.store.write.deletion import Deletion
from slipstream_proxy.store.write.judge_queue import JudgeQueue

PAGE_CHARACTERS = 8 * 2**20
"""JSON text of the episodes on one page, about; one alone may weigh more."""
IN_SET_CONDITION = "version <= ? AND (gone IS NULL OR gone > ?)"
"""Whether a row belongs to the set at a version (given twice)."""


class CaseRow(NamedTuple):
    """A row of ``t_cases``."""

    name: str
    eid: str
    version: int
    gone: int | None
    task: str | None
    tags: str
    reward: float | None
    calls: int
    ts: float
    body: str

    def public(self, *, whole: bool) -> Case:
        key, episode = name_of(self.eid)
        return Case(
            key=key,
            episode=episode,
            task=self.task,
            tags=load(self.tags),
            reward=self.reward,
            calls=self.calls,
            since=self.version,
            added=self.ts,
            detail=detail_of(self.body) if whole else None,
        )


def _changed(detail: EpisodeDetail, text: str, stored: str) -> bool:
    return text != stored and detail != detail_of(stored)


class CaseTable:
    def __init__(self, db: Driver) -> None:
        self.db = db

    def sets(self, name: str | None = None) -> list[CaseSet]:
        """All sets, or the one of this name, by name, each at its newest version."""
        sql = """SELECT s.name, s.version, s.changed, count(c.eid) FROM t_case_sets s
            LEFT JOIN t_cases c ON c.name = s.name AND c.gone IS NULL WHERE (? = '' OR s.name = ?)
            GROUP BY s.name, s.version, s.changed ORDER BY s.name"""
        with self.db.read() as tx:
            rows = tx.all(sql, (name or "", name or ""))
        return [CaseSet(name=n, version=version, changed=at, cases=cases) for n, version, at, cases in rows]

    def page(self, name: str, version: int | None, after: str, limit: int, *, whole: bool) -> CasePage | None:
        """Cases of a set in the order of their identities, those after ``after``. None: there is no such set."""
        found = self.sets(name)
        if not found:
            return None
        at = found[0].version if version is None else version
        sql = (
            f"SELECT eid, length(body) FROM t_cases WHERE name = ? AND {IN_SET_CONDITION} AND eid "
            "> ? ORDER BY eid LIMIT ?"
        )
        with self.db.read() as tx:
            sizes = tx.all(sql, (name, at, at, after, limit + 1))
            eids: list[str] = []
            weight = 0
            for eid, size in sizes[:limit]:
                weight += size if whole else 0
                if eids and weight > PAGE_CHARACTERS:
                    break
                eids.append(eid)
            sql = (
                f"SELECT {', '.join(CaseRow._fields)} FROM t_cases WHERE name = ? AND "
                f"{IN_SET_CONDITION} AND eid {IN} ORDER BY eid"
            )
            rows = [CaseRow(*row) for row in tx.all(sql, (name, at, at, eids))] if eids else []
        more = eids[-1] if len(eids) < len(sizes) else None
        return CasePage(set=found[0], version=at, cases=[row.public(whole=whole) for row in rows], next=more)

    def moved(self, name: str, version: int) -> int:
        """How many cases joined, left or were replaced at a version."""
        sql = "SELECT count(DISTINCT eid) FROM t_cases WHERE name = ? AND (version = ? OR gone = ?)"
        with self.db.read() as tx:
            return int(tx.all(sql, (name, version, version))[0][0])

    def whole(self, name: str, version: int, names: Collection[Name]) -> list[EpisodeDetail]:
        """These cases of a set at a version, as far as it has them, in any order."""
        sql = f"SELECT body FROM t_cases WHERE name = ? AND {IN_SET_CONDITION} AND eid {IN}"
        with self.db.read() as tx:
            rows = tx.all(sql, (name, version, version, [eid_of(*one) for one in names]))
        return [detail_of(body) for (body,) in rows]

    def labelled(self, model: str, without: str, most: int) -> list[Name]:
        """(key, id) of a model's ended episodes that people rewarded, newest first. ``without``: a set."""
        sql = """SELECT e.eid FROM t_episodes e WHERE e.model = ? AND e.state = 'done' AND e.error IS NULL
            AND e.eid IN (SELECT eid FROM t_rewards WHERE source = 'human') AND e.eid NOT IN (
            SELECT eid FROM t_cases WHERE name = ? AND gone IS NULL) ORDER BY e.started DESC LIMIT ?"""
        with self.db.read() as tx:
            rows = tx.all(sql, (model, without, most))
        return [name_of(eid) for (eid,) in rows]

    def named(self, key: str | None, ids: Collection[str], tags: Mapping[str, str]) -> list[Name]:
        """(key, id) of episodes of which some set has a copy: of this key or (None) any, one of these ids or (none
        given) any, with these tags.
        """
        with self.db.read() as tx:
            rows = tx.all("SELECT DISTINCT eid, tags FROM t_cases")
        found = {name_of(eid) for eid, held in rows if tags.items() <= load(held).items()}
        return sorted((k, i) for k, i in found if key in (None, k) and (not ids or i in ids))

    # out of the log

    def add(self, tx: Tx, name: str, version: int, copies: Mapping[str, tuple[str, float]]) -> None:
        """The set has these copies (episode → its JSON, and when it was added) from ``version`` on, instead of earlier
        ones. The same copy again changes nothing.
        """
        sql = f"SELECT eid, body FROM t_cases WHERE name = ? AND gone IS NULL AND eid {IN}"
        there: dict[str, str] = dict(tx.all(sql, (name, list(copies))))
        rows = []
        for eid, (text, now) in copies.items():
            detail = detail_of(text)
            if eid not in there or _changed(detail, text, there[eid]):
                tags, task = dump({clean(k): clean(v) for k, v in detail.tags.items()}), clean(detail.task)
                calls = len(detail.call_list)
                rows.append(CaseRow(name, eid, version, None, task, tags, detail.reward, calls, now, text))
        if rows:
            eids = [row.eid for row in rows]
            tx.run(f"DELETE FROM t_cases WHERE name = ? AND version = ? AND eid {IN}", (name, version, eids))
            self._leave(tx, name, version, eids)
            tx.insert("t_cases", rows)
            self._touch(tx, name, version, rows[0].ts)

    def remove(self, tx: Tx, name: str, version: int, eid: str, now: float) -> None:
        """The set has no such case from ``version`` on."""
        if self._leave(tx, name, version, [eid]):
            self._touch(tx, name, version, now)

    def drop(self, tx: Tx, name: str) -> None:
        """The set goes with all its versions."""
        for table in ("t_cases", "t_case_sets"):
            tx.run(f"DELETE FROM {table} WHERE name = ?", (name,))

    def _leave(self, tx: Tx, name: str, version: int, eids: list[str]) -> int:
        sql = f"UPDATE t_cases SET gone = ? WHERE name = ? AND gone IS NULL AND eid {IN}"
        return tx.run(sql, (version, name, eids))

    def _touch(self, tx: Tx, name: str, version: int, now: float) -> None:
        found = tx.all("SELECT version FROM t_case_sets WHERE name = ?", (name,))
        if not found:
            tx.insert("t_case_sets", [(name, version, now)])
        elif found[0][0] < version:
            tx.run("UPDATE t_case_sets SET version = ?, changed = ? WHERE name = ?", (version, now, name))


IMPORT_UPSTREAM = "import"
AT_ONCE = 64
"""Episodes whose calls and groups are looked up together."""


def record_of(call: CallRecord, ep: EpisodeDetail) -> RecordedCall:
    """The record that such a call was made of, as far as it is known."""
    ids, logprobs = call.completion_ids or [], call.logprobs or []
    choices = [
        Choice(
            call.reply[i] if i < len(call.reply) else None,
            call.finish_reason,
            ids[i] if i < len(ids) else [],
            logprobs[i] if i < len(logprobs) else [],
        )
        for i in range(max(len(call.reply), len(ids)))
    ]
    head = CallHead(
        id=call.id,
        key=ep.key,
        episode=ep.id,
        task=ep.task,
        split=ep.split,
        tags=ep.tags,
        model=call.model,
        trained=call.trained,
        adapter=call.adapter,
        arm=ep.arm,
        pin="control",
        dialect=call.dialect,
        stream=False,
        at=call.at,
        seconds=call.seconds,
        first_byte=None,
        status=call.status,
        outcome=call.outcome,
        upstream=IMPORT_UPSTREAM,
        origin=IMPORT_UPSTREAM,
        grouped=ep.task is not None,
        kind=call.kind,
    )
    said = (call.messages, call.tools, dict(call.sampling), call.prompt_ids or [])
    return RecordedCall(head, Parsed(*said, choices, call.untrainable_reason, call.error))


def episode_row(detail: EpisodeDetail, first: RecordedCall | None) -> EpisodeRow:
    """``first``: its first call; None: it has none."""
    sampled = [
        c.adapter for c in detail.call_list if c.adapter and (c.trainable or c.untrainable_reason == "superseded")
    ]
    last = max((c.at for c in detail.call_list), default=detail.started)
    return EpisodeRow(
        eid_of(detail.key, detail.id),
        detail.key,
        detail.id,
        task=detail.task,
        split=detail.split.value,
        tags=dump(detail.tags),
        model=detail.model,
        adapter=detail.adapter,
        arm=detail.arm,
        state=detail.state.value,
        started=detail.started,
        last_at=max(last, detail.started),
        ended=detail.ended,
        calls=len(detail.call_list),
        trained_calls=sum(
            c.trained is not None and c.untrainable_reason != left_out_reason(c.kind) for c in detail.call_list
        ),
        prompt_tokens=detail.prompt_tokens,
        completion_tokens=detail.completion_tokens,
        reward=detail.reward,
        grouped=detail.task is not None,
        alike=alike_of(first) if first else "",
        adapters=dump(list(dict.fromkeys(sampled))),
        last_end=max((c.at + c.seconds for c in detail.call_list), default=last),
    )


def detail_of(text: str) -> EpisodeDetail:
    try:
        return EpisodeDetail.model_validate_json(text)
    except ValidationError:  # a transcript may hold lone surrogates, which only Python's own reader takes
        return EpisodeDetail.model_validate(json.loads(text))


class _Lineage:
    """Groups and batches that some episodes come back into: read once, changed in memory, written once."""

    def __init__(self, tx: Tx, details: Sequence[EpisodeDetail]) -> None:
        groups = list({d.group for d in details if d.group})
        sql = f"SELECT {', '.join(GroupRow._fields)} FROM t_groups WHERE id {IN}"
        found = map(GroupRow._make, tx.all(sql, (groups,)) if groups else ())
        self.groups = {row.id: row for row in found}
        self._new: set[str] = set()
        self._changed: set[str] = set()
        batches = list({lineage.batch for d in details for lineage in d.lineage})
        sql = f"SELECT id FROM t_batches WHERE id {IN}"
        self._batches = {i for (i,) in tx.all(sql, (batches,))} if batches else set()
        self._batch_rows: list[BatchRow] = []
        self._members: list[MemberRow] = []

    def join(self, row: GroupRow) -> None:
        """One more member."""
        known = row.id in self.groups
        (self._changed if known else self._new).add(row.id)
        self.groups[row.id] = row

    def trained(self, ep: EpisodeRow, detail: EpisodeDetail, group: str, now: float) -> None:
        for lineage in detail.lineage:
            if lineage.batch not in self._batches:
                self._batches.add(lineage.batch)
                batch = BatchRow(
                    lineage.batch, "", IMPORT_UPSTREAM, ep.model, lineage.outcome, now, now, lineage.adapter
                )
                self._batch_rows.append(batch)
            self._members.append(MemberRow(lineage.batch, group, ep.eid, ep.reward, lineage.advantage))

    def write(self, tx: Tx) -> None:
        old = [self.groups[i] for i in self._changed - self._new]
        rows = [(g.id, g.n, g.state, g.completed) for g in old]
        tx.update("t_groups", ("id",), ("n", "state", "completed"), rows)
        tx.insert("t_groups", [self.groups[i] for i in self._new])
        tx.insert("t_batches", self._batch_rows)
        tx.insert("t_members", self._members)


class EpisodeRestore:
    def __init__(self, rules: Rules, memory: Memory, calls: CallTable, groups: GroupTable) -> None:
        self.rules = rules
        self.groups = groups
        self.memory = memory
        self.calls = calls

    def apply(self, tx: Tx, changes: Changes, items: Sequence[Mutation]) -> None:
        """Those that are here already, or were forgotten here, are left as they are."""
        for start in range(0, len(items), AT_ONCE):
            some = items[start : start + AT_ONCE]
            details = [detail_of(item.data["text"]) for item in some]
            stored, lineage = set(self._stored(tx, details)), _Lineage(tx, details)
            for item, detail in zip(some, details, strict=True):
                self._apply(tx, changes, lineage, stored, item, detail)
            self.groups.changed(lineage.groups)
            lineage.write(tx)

    def _stored(self, tx: Tx, details: Sequence[EpisodeDetail]) -> Iterator[str]:
        """Ids of their calls that are here."""
        days: dict[str, list[str]] = defaultdict(list)
        for detail in details:
            for call in detail.call_list:
                days[schema.day_of(call.at)].append(call.id)
        for day, ids in days.items():
            yield from self.calls.stored(tx, schema.table_of(day), ids)

    def _apply(
        self, tx: Tx, changes: Changes, lineage: _Lineage, stored: set[str], item: Mutation, detail: EpisodeDetail
    ) -> None:
        eid = eid_of(detail.key, detail.id)
        run = Conversations(detail.call_list)
        here = any(c.id in stored for c in detail.call_list)
        detail.call_list = [c for c in detail.call_list if c.id not in stored]
        if eid in changes.eps or eid in changes.gone or (here and not detail.call_list):
            return
        ep = episode_row(detail, record_of(run.whole(detail.call_list[0]), detail) if detail.call_list else None)
        changes.eps[eid] = ep
        changes.new.add(eid)
        changes.changed.add(eid)
        # each is put together when it is its turn: a long run's prompts fill a memory
        rows = [self._call(tx, changes, ep, record_of(run.whole(call), detail), call) for call in detail.call_list]
        ep.error = error_of_run(rows) if rows and len(rows) >= detail.calls else detail.error
        self.memory.calls.add(c.id for c in detail.call_list)
        changes.rewards += [RewardRow.of(f"{item.id}/{i}", eid, r, r.at) for i, r in enumerate(detail.rewards)]
        changes.rewarded |= {eid} if detail.rewards else set()
        if ep.state == "open" and ep.adapter:
            changes.pins[eid] = PinRow(eid, ep.model, ep.adapter, ep.arm, ep.last_at)
        self._regroup(changes, lineage, ep, detail, item.at)
        changes.now = max(changes.now, item.at)

    def _call(self, tx: Tx, changes: Changes, ep: EpisodeRow, record: RecordedCall, call: CallRecord) -> CallRow:
        row, _ = self.calls.append(tx, ep, record, call.number, changes.calls, new=True)
        row = row._replace(
            trainable=call.trainable,
            reason=clean(call.untrainable_reason),
            prompt_tokens=call.prompt_tokens,
            completion_tokens=call.completion_tokens,
            extends=call.extends if "extends" in call.model_fields_set else row.extends,
        )
        changes.calls[schema.day_of(call.at)].append(row)
        return row

    def _regroup(self, changes: Changes, lineage: _Lineage, ep: EpisodeRow, detail: EpisodeDetail, now: float) -> None:
        """Back into its group, which forms again as its episodes come. One that has trained never trains again."""
        group = detail.group or ""
        bucket, _, ordinal = group.removeprefix("g").rpartition("-")
        line = next((line for line in (line_of(ep), line_of(ep, recurs=True)) if line.bucket == bucket), None)
        if line is None or not (ordinal.isdecimal() and len(ordinal) < 10):
            if ep.state == "done":
                ep.state = "open"  # it ends in the same transaction, and joins a group as every episode that ends
                changes.done[ep.eid] = None
            return
        ep.grp = group
        row = lineage.groups.get(group)
        state = row.state if row else "forming"
        n = row.n + 1 if row else 1
        outcomes = {b.outcome for b in detail.lineage}
        if "trained" in outcomes:
            state = "trained"
        elif "skipped" in outcomes and state != "trained":
            state = "skipped"
        elif state == "forming" and n >= self.rules.group_size:
            state = "eval" if ep.split == "eval" else "waiting_reward"
        if row is None:
            lineage.join(group_of(ep, line, int(ordinal), state, now)._replace(id=group, n=1))
        else:
            completed = now if row.completed is None else row.completed
            lineage.join(row._replace(n=n, state=state, completed=completed))
        lineage.trained(ep, detail, group, now)


EPISODE_MUTATIONS = ("reward", "done", "episode", "case")
"""Mutations that name an episode by ``key`` and ``episode``."""


def _is_gone(changes: Changes, eid: str) -> bool:
    """It was forgotten: before this batch of records, or in it."""
    ep = changes.eps.get(eid)
    return (ep is not None and ep.state == "deleted") or eid in changes.gone


@dataclass(slots=True)
class MutationReplay:
    rewards: RewardTable
    judging: JudgeQueue
    batches: BatchQueue
    adapters: AdapterTable
    events: EventLog
    audit: AuditLog
    cache: CacheTable
    cases: CaseTable
    deletion: Deletion
    restore: EpisodeRestore
    of_plugins: dict[str, Callable[[Tx, Mutation], None]] = field(default_factory=dict)
    """Kinds that plug-ins bring (``extensions.Extension.mutations``)."""

    def prepare(self, tx: Tx, changes: Changes, mutations: Collection[Mutation]) -> None:
        """Load the idempotency keys that this batch's rewards may meet."""
        keyed = [m.data for m in mutations if m.op == "reward" and m.data["reward"].get("key")]
        changes.idem = self.rewards.idempotency_keys(tx, [eid_of(d["key"], d["episode"]) for d in keyed])

    def apply(self, tx: Tx, changes: Changes, item: Mutation) -> None:
        data: JsonObject = item.data
        match item.op:
            case "reward":
                reward = RewardIn.model_validate(data["reward"])
                self._reward(changes, item, eid_of(data["key"], data["episode"]), reward)
            case "done":
                self._done(changes, item, eid_of(data["key"], data["episode"]))
            case "delete":
                if "episodes" in data:
                    names = data["episodes"] or data["marks"]
                    changes.gone.update(dict.fromkeys(eid_of(*name) for name in names))
                else:
                    changes.gone.update(dict.fromkeys(self.deletion.eids(tx, data["key"], data["episode"])))
            case "scores":
                scores = ScoresIn.model_validate(data["scores"])
                for row in self.judging.replay(tx, data["group"], scores, item.at, key=data.get("key")):
                    changes.written[row.id] = Written(item.boot, item.tick, item.at)
                    changes.rewards.append(row)
                    changes.rewarded.add(row.eid)
            case "ack":
                ack = BatchAck.model_validate(data["ack"])
                self.batches.replay(tx, data["batch"], ack, data.get("members"), item.at)
            case "again":
                changes.again.append((data["groups"], data["epochs"], item.at))
            case "adapter":
                self.adapters.replay(tx, Adapter.model_validate(data))
            case "event":
                self.events.append(tx, Event.model_validate({**data, "at": data.get("at") or item.at}))
            case "audit":
                self.audit.append(tx, AuditEntry.model_validate(data))
            case "cache":
                self.cache.write(tx, data["key"], data["value"], data.get("at") or item.at)
                if "newest" in data:
                    self.cache.trim(tx, *data["newest"])
            case "uncase":
                eid = eid_of(data["key"], data["episode"])
                if not _is_gone(changes, eid):
                    self.cases.remove(tx, data["set"], data["version"], eid, item.at)
            case "caseset":
                self.cases.drop(tx, data["set"])
            case "pin":
                eid = eid_of(data["key"], data["episode"])
                pin = (data["model"], data["adapter"], data["arm"])
                changes.pins[eid] = PinRow(eid, *pin, item.at, chances=data.get("chances") or "")
            case "blank":
                pass  # what stood here is forgotten
            case other if other in self.of_plugins:
                self.of_plugins[other](tx, item)
            case other:
                raise ValueError(f"a mutation of an unknown kind: {other}")

    def add_cases(self, tx: Tx, changes: Changes, items: Sequence[Mutation]) -> None:
        """Those that come one after the other are written together: by itself, each would be five statements."""
        for start in range(0, len(items), AT_ONCE):
            sets = defaultdict[tuple[str, int], dict[str, tuple[str, float]]](dict)
            for item in items[start : start + AT_ONCE]:
                changes.now = max(changes.now, item.at)
                data, eid = item.data, eid_of(item.data["key"], item.data["episode"])
                if not _is_gone(changes, eid):
                    sets[data["set"], data["version"]][eid] = data["text"], item.at
            for (name, version), copies in sets.items():
                self.cases.add(tx, name, version, copies)

    def _done(self, changes: Changes, item: Mutation, eid: str) -> None:
        if eid in changes.gone:
            return
        if eid in changes.eps:
            changes.done[eid] = None
        else:
            changes.early.setdefault(eid, item.at)

    def _reward(self, changes: Changes, item: Mutation, eid: str, reward: RewardIn) -> None:
        if _is_gone(changes, eid):
            changes.dropped.append((item.data["key"], mark_of(item.data["episode"])))
            return
        if reward.key is not None:
            if (eid, reward.key) in changes.idem:
                return
            changes.idem.add((eid, reward.key))
        changes.rewards.append(RewardRow.of(item.id, eid, reward, item.at))
        changes.written[item.id] = Written(item.boot, item.tick, item.at)
        changes.rewarded.add(eid)
        if words_in(reward.name, reward.meta):
            changes.words.add(eid)
        if reward.done:
            self._done(changes, item, eid)
