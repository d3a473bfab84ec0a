"""An episode as another store exported it, put back whole: its ids, tokens, log-probabilities, rewards, group and
what was trained on it.
"""

from __future__ import annotations

import json

from slipstream.contract import CallRecord, EpisodeDetail
from slipstream.prefixes import Conversations
from slipstream_proxy.records import CallHead, Choice, Mutation, Parsed
from slipstream_proxy.store import schema
from slipstream_proxy.store.calls import CallTable
from slipstream_proxy.store.changes import Changes
from slipstream_proxy.store.codec import clean, dump
from slipstream_proxy.store.driver import Tx
from slipstream_proxy.store.groups import GroupTable, group_of, line_of
from slipstream_proxy.store.likeness import alike_of
from slipstream_proxy.store.memory import Memory
from slipstream_proxy.store.rows import BatchRow, EpisodeRow, MemberRow, PinRow, RewardRow, eid_of
from slipstream_proxy.store.values import RecordedCall, Rules

UPSTREAM = "import"


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
        upstream=UPSTREAM,
        origin=UPSTREAM,
        grouped=ep.task is not None,
    )
    parsed = Parsed(
        call.messages,
        call.tools,
        dict(call.sampling),
        call.prompt_ids or [],
        choices,
        call.untrainable_reason,
        call.error,
    )
    return RecordedCall(head, parsed)


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
        trained_calls=sum(c.trained is not None for c in detail.call_list),
        prompt_tokens=detail.prompt_tokens,
        completion_tokens=detail.completion_tokens,
        reward=detail.reward,
        grouped=detail.task is not None,
        alike=alike_of(first) if first else "",
        adapters=dump(list(dict.fromkeys(sampled))),
        last_end=max((c.at + c.seconds for c in detail.call_list), default=last),
    )


class EpisodeRestore:
    def __init__(self, rules: Rules, memory: Memory, calls: CallTable, groups: GroupTable) -> None:
        self.rules = rules
        self.groups = groups
        self.memory = memory
        self.calls = calls

    def apply(self, tx: Tx, changes: Changes, item: Mutation) -> None:
        """One that is here already, or was forgotten here, is left as it is."""
        detail = EpisodeDetail.model_validate(json.loads(item.data["text"]))
        eid = eid_of(detail.key, detail.id)
        days = {schema.day_of(c.at) for c in detail.call_list}
        run = Conversations(detail.call_list)
        ids = [c.id for c in detail.call_list]
        stored = {i for day in days for i in self.calls.stored(tx, schema.table_of(day), ids)}
        detail.call_list = [c for c in detail.call_list if c.id not in stored]
        if eid in changes.eps or eid in changes.gone or (stored and not detail.call_list):
            return
        ep = episode_row(detail, record_of(run.whole(detail.call_list[0]), detail) if detail.call_list else None)
        changes.eps[eid] = ep
        changes.new.add(eid)
        changes.changed.add(eid)
        for call in detail.call_list:  # each is put together when it is its turn: a long run's prompts fill a memory
            self._call(tx, changes, ep, record_of(run.whole(call), detail), call)
        self.memory.calls.add(c.id for c in detail.call_list)
        for i, r in enumerate(detail.rewards):
            row = RewardRow(
                f"{item.id}/{i}",
                0,
                eid,
                r.call,
                r.name,
                r.source,
                r.value,
                clean(r.reason),
                clean(r.key),
                dump(r.meta),
                r.at,
            )
            changes.rewards.append(row)
            changes.rewarded.add(eid)
        if ep.state == "open" and ep.adapter:
            changes.pins[eid] = PinRow(eid, ep.model, ep.adapter, ep.arm, ep.last_at)
        self._regroup(tx, changes, ep, detail, item.at)
        changes.now = max(changes.now, item.at)

    def _call(self, tx: Tx, changes: Changes, ep: EpisodeRow, record: RecordedCall, call: CallRecord) -> None:
        row, _ = self.calls.append(tx, ep, record, call.number, changes.calls, new=True)
        changes.calls[schema.day_of(call.at)].append(
            row._replace(
                trainable=call.trainable,
                reason=clean(call.untrainable_reason),
                prompt_tokens=call.prompt_tokens,
                completion_tokens=call.completion_tokens,
                extends=call.extends if "extends" in call.model_fields_set else row.extends,
            )
        )

    def _regroup(self, tx: Tx, changes: Changes, ep: EpisodeRow, detail: EpisodeDetail, now: float) -> None:
        """Back into the group that it was in, which forms again as its episodes come; one that has trained never
        trains again.
        """
        group = detail.group or ""
        bucket, _, ordinal = group.removeprefix("g").rpartition("-")
        line = next((line for line in (line_of(ep), line_of(ep, recurs=True)) if line.bucket == bucket), None)
        if line is None or not (ordinal.isdecimal() and len(ordinal) < 10):
            if ep.state == "done":
                ep.state = "open"  # it ends in the same transaction, and joins a group as every episode that ends
                changes.done[ep.eid] = None
            return
        ep.grp = group
        found = tx.all("SELECT n, state FROM t_groups WHERE id = ?", (group,))
        n, state = found[0] if found else (0, "forming")
        outcomes = {b.outcome for b in detail.lineage}
        if "trained" in outcomes:
            state = "trained"
        elif "skipped" in outcomes and state != "trained":
            state = "skipped"
        elif state == "forming" and n + 1 >= self.rules.group_size:
            state = "waiting_reward" if ep.split == "train" else "eval"
        self.groups.changed([group])
        if found:
            tx.run(
                "UPDATE t_groups SET n = ?, state = ?, completed = coalesce(completed, ?) WHERE id = ?",
                (n + 1, state, now, group),
            )
        else:
            row = group_of(ep, line, int(ordinal), state, now)
            tx.insert("t_groups", [row._replace(id=group, n=1)])
        for lineage in detail.lineage:
            if not tx.all("SELECT 1 FROM t_batches WHERE id = ?", (lineage.batch,)):
                batch = BatchRow(lineage.batch, "", UPSTREAM, ep.model, lineage.outcome, now, now, lineage.adapter)
                tx.insert("t_batches", [batch])
            tx.insert("t_members", [MemberRow(lineage.batch, group, ep.eid, ep.reward, lineage.advantage)])
