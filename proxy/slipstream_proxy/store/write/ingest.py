"""Spool records into tables: in order, exactly once, a batch in one transaction with the spool positions that it ends
at.

The work is done on sets: a batch loads the episodes it touches with one query (or has them in memory, where that is
sure), changes them in memory, and writes them back with one statement. A snapshot makes what is ingested safe in the
database's own file, and reads it back.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.contract import SIBLING_TAG, Split, words_in
from slipstream_proxy.log.records import CallHead, Mutation, mark_of
from slipstream_proxy.store.conversation.call_rows import kind_of, left_out_reason, untrainable_reason
from slipstream_proxy.store.conversation.calls import CallTable
from slipstream_proxy.store.conversation.failures import note_call
from slipstream_proxy.store.learning.adapters import PinTable
from slipstream_proxy.store.learning.groups import Agent, GroupTable, Pace, alike_of, joined_states, words_of
from slipstream_proxy.store.learning.rewards import OutcomeLog, RewardTable
from slipstream_proxy.store.read.episodes import EpisodeTable
from slipstream_proxy.store.tables import schema
from slipstream_proxy.store.tables.driver import IN, Driver, Row, StoreError, Tx
from slipstream_proxy.store.tables.memory import Memory, NewestRewards
from slipstream_proxy.store.tables.rows import (
    EPISODE_FIELDS,
    CallRow,
    Changes,
    EpisodeRow,
    PinRow,
    clean,
    dump,
    eid_of,
    load,
    tombstone_of,
    with_tombstones,
)
from slipstream_proxy.store.tables.schema import DayTables
from slipstream_proxy.store.tables.tallies import Tallies, TallyTable, count_rows, difference
from slipstream_proxy.store.values import Name, Position, RecordedCall
from slipstream_proxy.store.write.claims import InstanceClaim
from slipstream_proxy.store.write.deletion import Deletion
from slipstream_proxy.store.write.mutations import RUN_MUTATIONS, MutationReplay
from slipstream_proxy.store.write.unrewarded import is_back


class SpoolPositions:
    """``instance``: which proxy this is, where several share one database; the positions are its own."""

    def __init__(self, instance: str, memory: Memory) -> None:
        self.instance = instance
        self.memory = memory
        self.claim: InstanceClaim | None = None
        """With it alone they move; None: the store is this folder's own."""

    def all(self, tx: Tx) -> dict[str, Position]:
        found = tx.all("SELECT writer, segment, pos FROM t_positions WHERE instance = ?", (self.instance,))
        return {writer: Position(segment, pos) for writer, segment, pos in found}

    def move(self, tx: Tx, positions: dict[str, Position]) -> None:
        if not positions:
            return
        if self.claim is not None:
            self.claim.check(tx)
        known = self.memory.positions
        if not known.keys() >= positions.keys():
            known |= self.all(tx)
        moved = {writer: p for writer, p in positions.items() if known.get(writer) != p}
        rows = [(self.instance, writer, p.segment, p.offset) for writer, p in moved.items()]
        tx.insert("t_positions", [row for row in rows if row[1] not in known])
        tx.update("t_positions", ("instance", "writer"), ("segment", "pos"), [row for row in rows if row[1] in known])
        known |= moved


MAX_REMEMBERED_TOMBSTONES = 100_000
"""Of more forgotten episodes the database is asked each time."""
SNAPSHOT_OVERLAP_S = 60.0
"""Seconds of calls that a snapshot reads back once more: they come in the order in which they end."""


class Snapshots:
    def __init__(self, db: Driver, days: DayTables, positions: SpoolPositions) -> None:
        self.db = db
        self.days = days
        self.positions = positions
        self._verified = 0.0
        """Calls from then on have not been read back."""

    def take(self) -> None:
        """What came since the last snapshot is read whole, with all columns.

        Raises whatever says that it isn't there.
        """
        if self.db.shared:
            self.db.settle()
            return
        since = self._verified
        with self.db.read() as tx:
            before = self.positions.all(tx)
        with self.db.read() as tx:
            expected = self._sums(tx, since)
        self.db.settle()
        with self.db.reread() as tx:
            there = self.positions.all(tx)
            if any(there.get(w, Position(-1, 0)) < p for w, p in before.items()):
                raise StoreError(f"the snapshot holds positions {there}, and {before} were ingested")
            for table, (count, size) in self._sums(tx, since).items():
                if (count, size) < expected.get(table, (0, 0)):
                    raise StoreError(
                        f"the snapshot's {table} has {count} rows of {size} bytes, {expected[table]} were ingested"
                    )
            ends = [at for (at,) in tx.all("SELECT max(last_at) FROM t_episodes") if at]
            self._verified = max(ends, default=since) - SNAPSHOT_OVERLAP_S

    def _sums(self, tx: Tx, since: float) -> dict[str, tuple[int, int]]:
        """Rows of each table of calls since then, and how many bytes their columns hold: that reads all of them."""
        texts = [f"coalesce(length({c}), 0)" for c, kind in schema.CALL_COLUMNS.items() if kind == "TEXT"]
        blobs = [f"coalesce(octet_length({c}), 0)" for c, kind in schema.CALL_COLUMNS.items() if kind == "BYTEA"]
        size = " + ".join([*texts, *blobs])
        sums = {}
        for table in self.days.tables(tx, since):
            sql = f"SELECT count(*), coalesce(sum({size}), 0) FROM {table} WHERE ts >= ?"
            ((count, total),) = tx.all(sql, (since,))
            sums[table] = (int(count), int(total))
        return sums


@dataclass(eq=False)
class Recall:
    db: Driver
    memory: Memory
    calls: CallTable
    episodes: EpisodeTable
    rewards: RewardTable

    def fresh(
        self, tx: Tx, items: Sequence[RecordedCall | Mutation]
    ) -> tuple[dict[str, RecordedCall], dict[str, Mutation]]:
        """The items that are not stored yet, by id; mutations are noted as seen."""
        calls = {i.head.id: i for i in reversed(items) if isinstance(i, RecordedCall)}
        mutations = {i.id: i for i in reversed(items) if isinstance(i, Mutation)}
        self._remember(tx)
        seen = self.memory.calls
        by_day: dict[str, list[str]] = defaultdict(list)
        known = seen.stored(calls)
        for call_id in seen.unsure(calls):
            by_day[schema.day_of(calls[call_id].head.at)].append(call_id)
        for day, ids in by_day.items():
            known += self.calls.stored(tx, schema.table_of(day), ids)
        for call_id in known:
            del calls[call_id]
        seen.add(calls)
        seen = self.memory.mutations
        for known_id in {*seen.stored(mutations), *self.calls.stored(tx, "t_seen", seen.unsure(mutations))}:
            del mutations[known_id]
        tx.insert("t_seen", [(m.id, m.at) for m in mutations.values()])
        seen.add(mutations)
        return calls, mutations

    def _remember(self, tx: Tx) -> None:
        """Learn what is stored, where nobody else writes."""
        memory = self.memory
        if self.db.shared or memory.calls.ready:
            return
        tables = self.calls.days.tables(tx)
        highest = [r[0] for table in tables for r in tx.all(f"SELECT max(id) FROM {table}") if r[0]]
        memory.calls.begin(max(highest, default=None))
        memory.mutations.begin(tx.all("SELECT max(id) FROM t_seen")[0][0])
        memory.reward_ids.begin(tx.all("SELECT max(id) FROM t_rewards")[0][0])
        memory.early = {eid for (eid,) in tx.all("SELECT eid FROM t_early")}
        if memory.orphans is None:
            memory.orphans = self.rewards.orphans(tx)
        tombstones = tx.all(
            "SELECT eid FROM t_episodes WHERE state = 'deleted' LIMIT ?", (MAX_REMEMBERED_TOMBSTONES + 1,)
        )
        memory.tombstones = {eid for (eid,) in tombstones} if len(tombstones) <= MAX_REMEMBERED_TOMBSTONES else None

    def known(self, tx: Tx, eids: Collection[str]) -> dict[str, EpisodeRow]:
        """The episodes that there are of these."""
        hot = self.memory.episodes
        found = {eid: hot[eid] for eid in eids if eid in hot}
        rest = [eid for eid in eids if eid not in hot]
        if rest and not self.db.shared:
            # Most are new: the one narrow column says so faster than all of them.
            held = self.memory.tombstones
            names = with_tombstones(rest) if held is None else {eid: eid for eid in rest}
            there = [names[eid] for (eid,) in tx.all(f"SELECT eid FROM t_episodes WHERE eid {IN}", (list(names),))]
            rest = there if not held else [*there, *(eid for eid in rest if tombstone_of(eid) in held)]
        return found | self.episodes.load(tx, rest)


CALL_CHANGES = ("last_at", "calls", "trained_calls", "prompt_tokens", "completion_tokens", "last_end")
"""Columns of an episode that each of its calls changes."""
END_CHANGES = (*CALL_CHANGES, "state", "ended", "reward")
"""Those that its end and its reward change as well."""
CHANGING_COLUMNS = tuple(f for f in EPISODE_FIELDS if f not in ("eid", "grp"))
"""Those that a call or reward may change; the group's is in an index, and is written only where it has changed."""
READS_GROUPS = ("scores", "ack")
"""Mutations that are about groups."""
UNTAGGED_ORIGINS = ("new", "continued")
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
    dropped: list[Name] = field(default_factory=list)
    """Of the last records, as ``Changes.dropped``."""
    between: Callable[[], None] = lambda: None
    """Called before each record of a batch: whoever goes first has a turn there."""

    def ingest(self, items: Sequence[RecordedCall | Mutation], positions: dict[str, Position]) -> None:
        """Apply in order, exactly once: an item whose id is stored already changes nothing."""
        days = {schema.day_of(i.head.at) for i in items if isinstance(i, RecordedCall)}
        restored = (i.data["days"] for i in items if isinstance(i, Mutation) and i.op == "episode")
        self.calls.days.ensure(days.union(*restored))
        self.dropped = []
        try:
            with self.db.write() as tx:
                self.rewards.remembers = True
                self._apply(tx, items)
                self.positions.move(tx, positions)
        except BaseException:
            # What was remembered of this batch's calls is not in the store.
            self.calls.known.clear()
            self.memory.clear()
            raise
        finally:
            if self.db.shared:
                self.memory.rewards = NewestRewards()
                self.rewards.remembers = False

    def _apply(self, tx: Tx, items: Sequence[RecordedCall | Mutation]) -> None:
        """What reads groups waits until all that stands before it in the log is written: that may make them. So a store
        that is filled again from the log, in large parts, comes to the same as one that followed it.
        """
        start, before = 0, ""
        for n, item in enumerate(items):
            kind = _kind_of(item)
            if kind in READS_GROUPS and kind != before:
                self._apply_part(tx, items[start:n])
                start = n
            before = kind
        self._apply_part(tx, items[start:])

    def _apply_part(self, tx: Tx, items: Sequence[RecordedCall | Mutation]) -> None:
        calls, mutations = self.recall.fresh(tx, items)
        if not calls and not mutations:
            return
        changes = Changes()
        touched = {eid_of(c.head.key, c.head.episode) for c in calls.values()}
        touched |= {origin for c in calls.values() if (origin := _origin(c.head)) is not None}
        touched |= {eid_of(m.data["key"], m.data["episode"]) for m in mutations.values() if m.op in RUN_MUTATIONS}
        changes.learn(self.recall.known(tx, touched))
        self.mutations.prepare(tx, changes, mutations.values())
        for kind, same in itertools.groupby(_once(items, calls, mutations), _kind_of):
            if kind in ("episode", "case"):
                together = self.mutations.restore.apply if kind == "episode" else self.mutations.add_cases
                together(tx, changes, [item for item in same if isinstance(item, Mutation)])
                continue
            for item in same:
                self.between()
                if isinstance(item, RecordedCall):
                    self._call(tx, changes, item)
                else:
                    changes.now = max(changes.now, item.at)
                    self.mutations.apply(tx, changes, item)
        self._write(tx, changes)
        self.dropped += changes.dropped

    # calls

    def _call(self, tx: Tx, changes: Changes, call: RecordedCall) -> None:
        head = call.head
        eid = eid_of(head.key, head.episode)
        ep = changes.eps.get(eid)
        origin = changes.eps.get(_origin(head) or "")
        gone = _origin(head) in changes.gone or (origin is not None and origin.state == "deleted")
        if gone or (ep is not None and ep.state == "deleted") or eid in changes.gone:
            changes.dropped.append((head.key, mark_of(head.episode)))
            return
        if ep is None:
            ep = changes.eps[eid] = _first_row(eid, call)
            changes.new.add(eid)
        elif ep.idle and ep.state == "done":
            self._reopen(tx, changes, ep)
        if ep.last_end:
            self.pace.note(Agent(ep.key, ep.model), head.at - ep.last_end, head.at)
        self.pace.answered(Agent(ep.key, ep.model), head.seconds)
        changes.changed.add(eid)
        row, packed = self.calls.append(tx, ep, call, ep.calls, changes.calls, new=eid in changes.new)
        if row.number < ep.calls:
            self.calls.make_room(tx, ep, row, packed, changes.calls)
        changes.calls[schema.day_of(head.at)].append(row)
        trained, failed = ep.trained_calls, ep.error is not None
        note_call(ep, row)
        if (ep.error is not None) is not failed:
            changes.turned.add(eid)
        _note_adapter(ep, call, row)
        if ep.calls and (ep.trained_calls > trained == 0 or (failed and ep.error is None)):
            changes.late.add(eid)
        ep.calls += 1
        ep.prompt_tokens += packed.tokens[0]
        ep.completion_tokens += packed.tokens[1]
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
        if head.adapter and (head.pin == "moved" or eid in changes.new) and head.split != Split.SIBLING:
            pin = PinRow(eid, _model_of(call), head.adapter, head.arm, head.at, chances=head.chances)
            changes.pins[eid] = pin
            if eid in changes.new and not head.chances:
                changes.begun.append(pin)
        changes.now = max(changes.now, head.at + head.seconds)

    def _reopen(self, tx: Tx, changes: Changes, ep: EpisodeRow) -> None:
        """It was taken for over and is not. It keeps its place in its group, unless a trainer has it already."""
        if ep.grp is None or self.groups.hold(tx, ep.grp):
            ep.state, ep.ended, ep.idle = "open", None, False
            changes.reopened.add(ep.eid)

    # writing

    def _write(self, tx: Tx, changes: Changes) -> None:
        added: Tallies = {}
        for day, rows in changes.calls.items():
            added |= self.calls.insert(tx, day, rows)
        changes.learn(self.recall.known(tx, changes.rewarded - changes.eps.keys()))
        if self.memory.orphans is not None:
            for eid in changes.new - self.memory.orphans:
                self.memory.rewards.keep(eid, ())
        touched = {*changes.changed, *changes.rewarded, *changes.done}
        before = self._counted(tx, touched, changes.stored)
        self._write_episodes(tx, changes)
        self.tallies.insert(tx, added | difference(before, self._counted(tx, touched, changes.eps)))
        self.deletion.forget(tx, list(changes.gone), changes.now)

    def _counted(self, tx: Tx, eids: Collection[str], rows: Mapping[str, EpisodeRow]) -> Tallies:
        return count_rows([rows[eid] for eid in eids if eid in rows], self.rewards.newest(tx, eids))

    def _write_episodes(self, tx: Tx, changes: Changes) -> None:
        self.rewards.insert(tx, changes.rewards, changes.written)
        self._end_early(tx, changes)
        self.calls.supersede(tx, changes.retried)
        orphans = self.memory.orphans
        heard = changes.words | (changes.new if orphans is None else changes.new & orphans)
        scored = self._combine(tx, changes)
        self._hear(tx, changes, heard.intersection(scored) | changes.late)
        back = {eid for eid in scored if is_back(changes.eps[eid])}
        ended = []
        for eid in changes.done:
            ep = changes.eps[eid]
            if ep.state == "open":
                ep.state, ep.ended = "done", max(ep.last_at, ep.ended or 0.0)
                ended.append(ep)
            ep.idle = False
            changes.changed.add(eid)
        eps = changes.eps
        # of a run that had ended and failed, a call was answered after all
        known = {ep.eid for ep in ended}
        ended += [
            ep for eid in (changes.turned | back) - known if (ep := eps[eid]).state == "done" and ep.error is None
        ]
        joining = [ep for ep in ended if ep.grp is None]
        full = self.groups.join(tx, ended, changes.now)
        self._write_rows(tx, changes, {ep.eid for ep in ended})
        self.pins.put(tx, changes.pins)
        self.outcomes.write(
            tx,
            changes.now,
            assigned=[(row, "") for row in changes.begun if row.eid in eps and eps[row.eid].split == "train"],
            turned=[eps[eid] for eid in changes.turned],
            ended=[eps[eid] for eid in changes.changed if eid in scored or eid in changes.done],
        )
        self.pins.hold(tx, changes.reopened)
        self.pins.release(tx, [ep.eid for ep in ended])
        self.groups.complete(tx, full, changes.now)
        corrected = {g for eid in scored if (g := eps[eid].grp)}
        settled = {*full, *corrected, *(ep.grp for ep in ended if ep.grp)}
        known_states = joined_states(joining, full)
        states = known_states | self.groups.states(tx, settled - known_states.keys())
        self.groups.mark_ready(tx, settled, changes.now, states)
        self.groups.mark_corrected(tx, corrected, states)
        for groups, epochs, at in changes.again:  # after the groups and acks that this batch holds
            self.groups.take_again(tx, groups, epochs, at)
        if not self.db.shared:
            self.memory.keep(eps.values())

    @staticmethod
    def _write_rows(tx: Tx, changes: Changes, ended: Collection[str]) -> None:
        """``ended``: episodes that may have joined a group."""
        eps, stored = changes.eps, changes.stored
        tx.insert("t_episodes", [eps[eid].row() for eid in changes.new])
        rows: dict[tuple[str, ...], list[Row]] = defaultdict(list)
        for eid in (changes.changed | (ended & changes.stored.keys())) - changes.new:
            ep, was = eps[eid], stored[eid]
            columns = _columns_of(ep, was)
            if ep.grp != was.grp and ep.grp is not None and eid in ended:
                columns = (*columns, "grp")
            rows[columns].append((eid, *(getattr(ep, f) for f in columns)))
        for columns, some in rows.items():
            tx.update("t_episodes", ("eid",), columns, some)

    def _combine(self, tx: Tx, changes: Changes) -> Collection[str]:
        """Combine the rewards of the episodes that this batch rewards. → Those that there are."""
        orphans = self.memory.orphans
        scored = {eid for eid in changes.rewarded | changes.turned if eid in changes.eps}
        scored |= changes.new if orphans is None else changes.new & orphans
        if orphans is not None:
            orphans -= changes.new
            orphans |= changes.rewarded - changes.eps.keys()
        for eid, reward in self.rewards.combined(tx, scored).items():
            changes.eps[eid].reward = None if changes.eps[eid].error is not None else reward
            changes.changed.add(eid)
        return scored

    def _hear(self, tx: Tx, changes: Changes, about: Collection[str]) -> None:
        """What a user says about an episode is a group of its own, once there is a call of a trained model. ``about``:
        episodes about which something was said perhaps.
        """
        eps = {
            eid: ep
            for eid in about
            if (ep := changes.eps[eid]).split == Split.TRAIN
            and ep.state != "deleted"
            and ep.trained_calls
            and ep.error is None
        }
        if not eps:
            return
        # what was said about an imported episode has a slash in its id, and taught where it came from
        sql = f"""SELECT id, eid, ts, name, meta FROM t_rewards
            WHERE strpos(meta, '"words":') > 0 AND strpos(id, '/') = 0 AND eid {IN} ORDER BY seq"""
        rows = tx.all(sql, (list(eps),))
        found = [words_of(eps[eid], i, at) for i, eid, at, name, meta in rows if words_in(name, load(meta, {}))]
        sql = f"SELECT id FROM t_groups WHERE id {IN}"
        known = {group for (group,) in tx.all(sql, ([row.id for row in found],))} if found else set()
        tx.insert("t_groups", [row for row in found if row.id not in known])

    def _end_early(self, tx: Tx, changes: Changes) -> None:
        """An episode may be posted as done before its calls are read."""
        changes.done |= dict.fromkeys(eid for eid in changes.early if eid in changes.new)
        held = self.memory.early
        if new := [*(changes.new if held is None else changes.new & held)]:
            for (eid,) in tx.all(f"SELECT eid FROM t_early WHERE eid {IN}", (new,)):
                changes.done[eid] = None
                tx.run("DELETE FROM t_early WHERE eid = ?", (eid,))
            if held is not None:
                held.difference_update(new)
        early = {eid: at for eid, at in changes.early.items() if eid not in changes.new}
        if early:
            known = {eid for (eid,) in tx.all(f"SELECT eid FROM t_early WHERE eid {IN}", (list(early),))}
            tx.insert("t_early", [(eid, at) for eid, at in early.items() if eid not in known])
            if held is not None:
                held.update(early)


def _columns_of(ep: EpisodeRow, was: EpisodeRow) -> tuple[str, ...]:
    """What is written of a changed episode: one of few sets, as each costs a statement."""
    changed = {f for f in CHANGING_COLUMNS if getattr(ep, f) != getattr(was, f)}
    return next(few for few in (CALL_CHANGES, END_CHANGES, CHANGING_COLUMNS) if changed.issubset(few))


def _origin(head: CallHead) -> str | None:
    """The run of whose step this is one more sample: what is forgotten of the one is forgotten of the other."""
    named = head.tags.get(SIBLING_TAG) if head.split == Split.SIBLING else None
    return eid_of(head.key, named) if named else None


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
        untagged=head.origin in UNTAGGED_ORIGINS,
    )


def _note_adapter(ep: EpisodeRow, call: RecordedCall, row: CallRow) -> None:
    """An episode's adapter is that of its first trained call. ``adapters`` are all that its tokens come from. What is
    left out for its kind counts for neither: a run of such calls alone is no rival in a group.
    """
    head = call.head
    if row.reason == left_out_reason(kind_of(row)):
        return
    if head.trained is not None:
        if not ep.trained_calls:
            ep.model, ep.adapter, ep.arm, ep.chances = head.trained, head.adapter, head.arm, head.chances
        ep.trained_calls += 1
    if head.adapter and untrainable_reason(call) is None:
        adapters = load(ep.adapters)
        if head.adapter not in adapters:
            ep.adapters = dump([*adapters, head.adapter])
