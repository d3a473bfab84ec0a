"""An exported episode is put back whole: ids, tokens, log-probabilities, rewards, group, and what was trained on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from slipstream.contract import (
    IMPORT_UPSTREAM,
    CallRecord,
    EpisodeDetail,
)
from slipstream.models import read_model
from slipstream.shared.prefixes import Conversations
from slipstream_proxy.log.records import CallHead, Choice, Mutation, Parsed
from slipstream_proxy.store.conversation.call_rows import left_out_reason
from slipstream_proxy.store.conversation.calls import CallTable
from slipstream_proxy.store.conversation.failures import error_of_run
from slipstream_proxy.store.learning.groups import GroupTable, alike_of, group_of, line_of
from slipstream_proxy.store.tables import schema
from slipstream_proxy.store.tables.driver import IN, Tx
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
    clean,
    dump,
    eid_of,
)
from slipstream_proxy.store.values import RecordedCall, Rules

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
            details = [read_model(EpisodeDetail, item.data["text"]) for item in some]
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
