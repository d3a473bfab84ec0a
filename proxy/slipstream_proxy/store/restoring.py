"""An episode as another store exported it, put back whole: its ids, tokens, log-probabilities, rewards, group and what was trained on it."""

from __future__ import annotations

import json

from slipstream.contract import CallRecord, EpisodeDetail
from slipstream_proxy.records import CallHead, Choice, Mutation, Parsed
from slipstream_proxy.store import schema
from slipstream_proxy.store.compact import cut
from slipstream_proxy.store.driver import Row, Tx
from slipstream_proxy.store.groups import GROUP_COLUMNS, bucket_of, group_row
from slipstream_proxy.store.judging import Judging
from slipstream_proxy.store.protocol import CallRow
from slipstream_proxy.store.recall import Recall
from slipstream_proxy.store.rows import C, Ep, alike_of, call_row, clean, dump, eid_of, pack
from slipstream_proxy.store.work import Work

UPSTREAM = "import"


def call_of(told: CallRecord, ep: EpisodeDetail) -> CallRow:
    """The record that such a call was made of, as far as it is known."""
    ids, logprobs = told.completion_ids or [], told.logprobs or []
    choices = [
        Choice(
            told.reply[i] if i < len(told.reply) else None, told.finish_reason,
            ids[i] if i < len(ids) else [], logprobs[i] if i < len(logprobs) else [],
        )
        for i in range(max(len(told.reply), len(ids)))
    ]  # fmt: skip
    head = CallHead(
        id=told.id, key=ep.key, episode=ep.id, task=ep.task, split=ep.split, tags=ep.tags, model=told.model, trained=told.trained,
        adapter=told.adapter, arm=ep.arm, pin="control", dialect=told.dialect, stream=False, at=told.at, seconds=told.seconds, first_byte=None,
        status=told.status, outcome=told.outcome, upstream=UPSTREAM, origin=UPSTREAM, grouped=ep.task is not None,
    )  # fmt: skip
    parsed = Parsed(
        told.messages,
        told.tools,
        dict(told.sampling),
        told.prompt_ids or [],
        choices,
        told.untrainable_reason,
        told.error,
    )
    return CallRow(head, parsed)


def episode_row(told: EpisodeDetail, calls: list[CallRow]) -> Ep:
    sampled = [c.adapter for c in told.call_list if c.adapter and (c.trainable or c.untrainable_reason == "superseded")]
    last = max((c.at for c in told.call_list), default=told.started)
    return Ep(
        eid_of(told.key, told.id), told.key, told.id, task=told.task, split=told.split.value, tags=dump(told.tags), model=told.model,
        adapter=told.adapter, arm=told.arm, state=told.state.value, started=told.started, last_at=max(last, told.started), ended=told.ended,
        calls=len(calls), trained_calls=sum(c.trained is not None for c in told.call_list), prompt_tokens=told.prompt_tokens,
        completion_tokens=told.completion_tokens, reward=told.reward, grouped=told.task is not None,
        alike=alike_of(calls[0]) if calls else "", adapters=dump(list(dict.fromkeys(sampled))),
    )  # fmt: skip


class Restoring(Recall, Judging):
    def _restore(self, tx: Tx, work: Work, item: Mutation) -> None:
        """One that is here already, or was forgotten here, is left as it is."""
        told = EpisodeDetail.model_validate(json.loads(item.data["text"]))
        eid = eid_of(told.key, told.id)
        days = {schema.day_of(c.at) for c in told.call_list}
        stored = {i for day in days for i in self._stored(tx, schema.table_of(day), [c.id for c in told.call_list])}
        told.call_list = [c for c in told.call_list if c.id not in stored]
        if eid in work.eps or eid in work.gone or (stored and not told.call_list):
            return
        calls = [call_of(c, told) for c in told.call_list]
        ep = episode_row(told, calls)
        work.eps[eid] = ep
        work.new.add(eid)
        work.changed.add(eid)
        for call, what in zip(calls, told.call_list, strict=True):
            self._restore_call(tx, work, ep, call, what)
        self.memory.calls.add(c.id for c in told.call_list)
        for i, r in enumerate(told.rewards):
            row = (f"{item.id}/{i}", 0, eid, r.call, r.name, r.source, r.value, clean(r.reason), clean(r.key), dump(r.meta), r.at)  # fmt: skip
            work.rewards.append(row)
            work.rewarded.add(eid)
        if ep.state == "open" and ep.adapter:
            work.pins[eid] = (eid, ep.model, ep.adapter, ep.arm, ep.last_at, True)
        self._regroup(tx, work, ep, told, item.at)
        work.now = max(work.now, item.at)

    def _restore_call(self, tx: Tx, work: Work, ep: Ep, call: CallRow, told: CallRecord) -> None:
        packed = pack(call)
        day = schema.day_of(told.at)
        known = self._possible(tx, ep, day, new=True)
        made = cut(packed.texts, packed.digests, packed.prompt, packed.tools, known)
        row = list(call_row(call, ep.eid, told.number, packed, made))
        as_told = {
            "trainable": told.trainable, "reason": clean(told.untrainable_reason), "prompt_tokens": told.prompt_tokens,
            "completion_tokens": told.completion_tokens,
        }  # fmt: skip
        for name, value in as_told.items():
            row[C[name]] = value
        work.calls[day].append(tuple(row))
        self.parents.add(day, ep.eid, packed.known(told.id))

    def _regroup(self, tx: Tx, work: Work, ep: Ep, told: EpisodeDetail, now: float) -> None:
        """Back into the group that it was in, which forms anew as its episodes come; one that has trained never trains again."""
        bucket = bucket_of(ep)
        group, ordinal = told.group or "", (told.group or "").removeprefix(f"g{bucket}-")
        if not (group.startswith(f"g{bucket}-") and ordinal.isdecimal() and len(ordinal) < 10):
            if ep.state == "done":
                ep.state = "open"  # it ends in the same transaction, and joins a group as every episode that ends
                work.done[ep.eid] = None
            return
        ep.grp = group
        found = tx.all("SELECT n, state FROM t_groups WHERE id = ?", (group,))
        n, state = found[0] if found else (0, "forming")
        outcomes = {b.outcome for b in told.lineage}
        if "trained" in outcomes:
            state = "trained"
        elif "skipped" in outcomes and state != "trained":
            state = "skipped"
        elif state == "forming" and n + 1 >= self.rules.group_size:
            state = "waiting_reward" if ep.split == "train" else "eval"
        if found:
            tx.run(
                "UPDATE t_groups SET n = ?, state = ?, completed = coalesce(completed, ?) WHERE id = ?",
                (n + 1, state, now, group),
            )
        else:
            kind = "task" if ep.grouped else "like"
            row: list[object] = list(group_row(group, bucket, int(ordinal), kind, ep, state, now))
            row[GROUP_COLUMNS.index("n")] = 1
            tx.insert("t_groups", [tuple(row)])
        for batch in told.lineage:
            if not tx.all("SELECT 1 FROM t_batches WHERE id = ?", (batch.batch,)):
                tx.insert("t_batches", [(batch.batch, "", UPSTREAM, ep.model, batch.outcome, now, now, batch.adapter, None, None)])  # fmt: skip
            member: Row = (batch.batch, group, ep.eid, ep.reward, batch.advantage)
            tx.insert("t_members", [member])


__all__ = ["Restoring"]
