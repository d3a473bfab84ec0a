"""Spool records into tables: in order, exactly once, a batch in one transaction with the spool positions that it ends
at.

The work is done on sets: a batch loads the episodes it touches with one query, changes them in memory, and writes them
back with one statement.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from slipstream_proxy.records import Mutation
from slipstream_proxy.store import schema
from slipstream_proxy.store.call_rows import untrainable_reason
from slipstream_proxy.store.calls import CallTable
from slipstream_proxy.store.changes import Changes
from slipstream_proxy.store.codec import clean, dump, load
from slipstream_proxy.store.deletion import Deletion
from slipstream_proxy.store.driver import IN, Driver, Tx
from slipstream_proxy.store.groups import GroupTable
from slipstream_proxy.store.likeness import alike_of
from slipstream_proxy.store.memory import Memory
from slipstream_proxy.store.mutations import NAMED, MutationReplay
from slipstream_proxy.store.outcomes import OutcomeLog
from slipstream_proxy.store.pace import Agent, Pace
from slipstream_proxy.store.pins import PinTable
from slipstream_proxy.store.positions import SpoolPositions
from slipstream_proxy.store.recall import Recall
from slipstream_proxy.store.rewards import RewardTable
from slipstream_proxy.store.rows import EPISODE_FIELDS, EpisodeRow, PinRow, eid_of
from slipstream_proxy.store.tallies import TallyTable
from slipstream_proxy.store.values import Position, RecordedCall

CHANGING = tuple(f for f in EPISODE_FIELDS if f not in ("eid", "grp"))
"""Columns of an episode that its calls and rewards change."""
UNTAGGED = ("new", "continued")
"""Origins of a call whose episode the data plane named."""


def _once(
    items: Sequence[RecordedCall | Mutation], calls: dict[str, RecordedCall], mutations: dict[str, Mutation]
) -> Iterator[RecordedCall | Mutation]:
    """Those of ``calls`` and ``mutations``, in the order of ``items``."""
    for item in items:
        one = calls.pop(item.head.id, None) if isinstance(item, RecordedCall) else mutations.pop(item.id, None)
        if one is not None:
            yield item


def _kind_of(item: RecordedCall | Mutation) -> str:
    return "call" if isinstance(item, RecordedCall) else item.op


@dataclass(slots=True)
class Ingest:
    db: Driver
    memory: Memory
    positions: SpoolPositions
    recall: Recall
    calls: CallTable
    groups: GroupTable
    rewards: RewardTable
    pins: PinTable
    outcomes: OutcomeLog
    deletion: Deletion
    mutations: MutationReplay
    pace: Pace
    tallies: TallyTable

    def ingest(self, items: Sequence[RecordedCall | Mutation], positions: dict[str, Position]) -> None:
        """Apply in order, exactly once: an item whose id is stored already changes nothing."""
        days = {schema.day_of(i.head.at) for i in items if isinstance(i, RecordedCall)}
        restored = (i.data["days"] for i in items if isinstance(i, Mutation) and i.op == "episode")
        self.calls.days.ensure(days.union(*restored))
        try:
            with self.db.write() as tx:
                self._apply(tx, items)
                self.positions.move(tx, positions)
        except BaseException:
            # What was remembered of this batch's calls is not in the store.
            self.calls.known.clear()
            self.memory.clear()
            raise

    def _apply(self, tx: Tx, items: Sequence[RecordedCall | Mutation]) -> None:
        calls, mutations = self.recall.fresh(tx, items)
        if not calls and not mutations:
            return
        changes = Changes()
        touched = {eid_of(c.head.key, c.head.episode) for c in calls.values()}
        touched |= {eid_of(m.data["key"], m.data["episode"]) for m in mutations.values() if m.op in NAMED}
        changes.eps = self.recall.known(tx, touched)
        self.mutations.prepare(tx, changes, mutations.values())
        for kind, same in itertools.groupby(_once(items, calls, mutations), _kind_of):
            if kind == "episode":
                self.mutations.restore.apply(tx, changes, [item for item in same if isinstance(item, Mutation)])
                continue
            for item in same:
                if isinstance(item, RecordedCall):
                    self._call(tx, changes, item)
                else:
                    changes.now = max(changes.now, item.at)
                    self.mutations.apply(tx, changes, item)
        self._write(tx, changes)

    # calls

    def _call(self, tx: Tx, changes: Changes, call: RecordedCall) -> None:
        head = call.head
        eid = eid_of(head.key, head.episode)
        ep = changes.eps.get(eid)
        if (ep is not None and ep.state == "deleted") or eid in changes.gone:
            return
        if ep is None:
            ep = changes.eps[eid] = _first_row(eid, call)
            changes.new.add(eid)
        elif ep.idle and ep.state == "done":
            self._reopen(tx, changes, ep)
        if ep.last_end:
            self.pace.note(Agent(ep.key, ep.model), head.at - ep.last_end, head.at)
        changes.changed.add(eid)
        row, packed = self.calls.append(tx, ep, call, ep.calls, changes.calls, new=eid in changes.new)
        if row.number < ep.calls:
            self.calls.make_room(tx, ep, row, packed, changes.calls)
        changes.calls[schema.day_of(head.at)].append(row)
        _note_adapter(ep, call)
        ep.calls += 1
        ep.prompt_tokens += packed.prompt.ids.size
        ep.completion_tokens += packed.completion.size
        ep.started, ep.last_at = min(ep.started, head.at), max(ep.last_at, head.at)
        ep.last_end = max(ep.last_end, head.at + head.seconds)
        if ep.ended is not None:
            ep.ended = max(ep.ended, head.at)
        if head.attempt:
            ep.retried = True
        if ep.retried:
            changes.retried.add(eid)
        if head.done:
            changes.done[eid] = None
        if head.adapter and (head.pin == "moved" or eid in changes.new):
            changes.pins[eid] = PinRow(eid, _model_of(call), head.adapter, head.arm, head.at, chances=head.chances)
        changes.now = max(changes.now, head.at + head.seconds)

    def _reopen(self, tx: Tx, changes: Changes, ep: EpisodeRow) -> None:
        """It was taken for over and is not. It keeps its place in its group, unless a trainer has it already."""
        if ep.grp is None or self.groups.hold(tx, ep.grp):
            ep.state, ep.ended, ep.idle = "open", None, False
            changes.reopened.add(ep.eid)

    # writing

    def _write(self, tx: Tx, changes: Changes) -> None:
        for day, rows in changes.calls.items():
            self.calls.insert(tx, day, rows)
        touched = {*changes.changed, *changes.rewarded, *changes.done}
        fresh = changes.new if self.memory.orphans is None else changes.new - self.memory.orphans
        with self.tallies.around(tx, touched, new=() if self.memory.orphans is None else fresh):
            self._write_episodes(tx, changes)
        self.deletion.forget(tx, list(changes.gone), changes.now)

    def _write_episodes(self, tx: Tx, changes: Changes) -> None:
        self.rewards.insert(tx, changes.rewards)
        self._end_early(tx, changes)
        self.calls.supersede(tx, changes.retried)
        scored = self._combine(tx, changes)
        ended = []
        for eid in changes.done:
            ep = changes.eps[eid]
            if ep.state == "open":
                ep.state, ep.ended = "done", max(ep.last_at, ep.ended or 0.0)
                ended.append(ep)
            ep.idle = False
            changes.changed.add(eid)
        full = self.groups.join(tx, ended, changes.now)
        eps = changes.eps
        tx.insert("t_episodes", [eps[eid].row() for eid in changes.new])
        changed = [tuple(getattr(eps[eid], f) for f in ("eid", *CHANGING)) for eid in changes.changed - changes.new]
        tx.update("t_episodes", ("eid",), CHANGING, changed)
        self.groups.write_members(tx, [ep for ep in ended if ep.eid not in changes.new])
        self.outcomes.note(
            tx, [eps[eid] for eid in changes.changed if eid in scored or eid in changes.done], changes.now
        )
        self.pins.put(tx, changes.pins)
        self.pins.hold(tx, changes.reopened)
        self.pins.release(tx, [ep.eid for ep in ended])
        self.groups.complete(tx, full, changes.now)
        settled = {*(eps[eid].grp for eid in scored), *(ep.grp for ep in ended)}
        self.groups.mark_ready(tx, {*full, *(g for g in settled if g)}, changes.now)
        if not self.db.shared:
            self.memory.keep(eps.values())

    def _combine(self, tx: Tx, changes: Changes) -> Collection[str]:
        """Combine the rewards of the episodes that this batch rewards. → Those that there are."""
        missing = [eid for eid in changes.rewarded if eid not in changes.eps]
        changes.eps |= self.recall.known(tx, missing)
        orphans = self.memory.orphans
        scored = {eid for eid in changes.rewarded if eid in changes.eps}
        scored |= changes.new if orphans is None else changes.new & orphans
        if orphans is not None:
            orphans -= changes.new
            orphans |= changes.rewarded - changes.eps.keys()
        for eid, reward in self.rewards.combined(tx, scored).items():
            changes.eps[eid].reward = reward
            changes.changed.add(eid)
        return scored

    def _end_early(self, tx: Tx, changes: Changes) -> None:
        """An episode may be posted as done before its calls are read."""
        changes.done |= dict.fromkeys(eid for eid in changes.early if eid in changes.new)
        if changes.new:
            for (eid,) in tx.all(f"SELECT eid FROM t_early WHERE eid {IN}", (list(changes.new),)):
                changes.done[eid] = None
                tx.run("DELETE FROM t_early WHERE eid = ?", (eid,))
        early = {eid: at for eid, at in changes.early.items() if eid not in changes.new}
        if early:
            known = {eid for (eid,) in tx.all(f"SELECT eid FROM t_early WHERE eid {IN}", (list(early),))}
            tx.insert("t_early", [(eid, at) for eid, at in early.items() if eid not in known])


def _model_of(call: RecordedCall) -> str:
    return call.head.trained or clean(call.head.model) or ""


def _first_row(eid: str, call: RecordedCall) -> EpisodeRow:
    """The row of an episode that begins with this call."""
    head = call.head
    return EpisodeRow(
        eid,
        head.key,
        head.episode,
        task=clean(head.task),
        split=head.split,
        model=_model_of(call),
        adapter=head.adapter,
        arm=head.arm,
        chances=head.chances,
        tags=dump({clean(k): clean(v) for k, v in head.tags.items()}),
        started=head.at,
        last_at=head.at,
        grouped=head.grouped,
        alike=alike_of(call),
        untagged=head.origin in UNTAGGED,
    )


def _note_adapter(ep: EpisodeRow, call: RecordedCall) -> None:
    """An episode's adapter is that of its first trained call. ``adapters`` are all that its tokens come from."""
    head = call.head
    if head.trained is not None:
        if not ep.trained_calls:
            ep.model, ep.adapter, ep.arm, ep.chances = head.trained, head.adapter, head.arm, head.chances
        ep.trained_calls += 1
    if head.adapter and untrainable_reason(call) is None:
        adapters = load(ep.adapters)
        if head.adapter not in adapters:
            ep.adapters = dump([*adapters, head.adapter])
