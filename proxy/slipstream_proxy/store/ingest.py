"""Spool records into tables: in order, exactly once, a batch in one transaction with the spool positions that it ends at.

The work is done on sets: a batch loads the episodes it touches with one query, changes them in memory, and writes them back with one statement.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from slipstream.contract import Adapter, BatchAck, CacheEntry, Event, RewardIn, ScoresIn
from slipstream_proxy.records import Mutation
from slipstream_proxy.store import schema
from slipstream_proxy.store.base import IN
from slipstream_proxy.store.compact import cut
from slipstream_proxy.store.driver import Tx
from slipstream_proxy.store.judging import Judging
from slipstream_proxy.store.lifecycle import Lifecycle
from slipstream_proxy.store.protocol import CallRow, Position
from slipstream_proxy.store.recall import Recall
from slipstream_proxy.store.registry import Registry
from slipstream_proxy.store.restoring import Restoring
from slipstream_proxy.store.rows import EP_FIELDS, Ep, alike_of, call_row, clean, dump, eid_of, load, pack
from slipstream_proxy.store.rows import untrainable as why_not
from slipstream_proxy.store.work import Work

NAMED = ("reward", "done", "episode")
"""Mutations that name an episode by ``key`` and ``episode``."""


class Ingest(Restoring, Recall, Judging, Lifecycle, Registry):
    def ingest(self, items: Sequence[CallRow | Mutation], positions: dict[str, Position]) -> None:
        """Apply in order, exactly once: an item whose id is stored already changes nothing."""
        days = {schema.day_of(i.head.at) for i in items if isinstance(i, CallRow)}
        self._ensure_days(days.union(*(i.data["days"] for i in items if isinstance(i, Mutation) and i.op == "episode")))
        try:
            with self.db.write() as tx:
                self._apply(tx, items)
                self._move(tx, positions)
        except BaseException:
            # What was remembered of this batch's calls is not in the store.
            self.parents.clear()
            self.memory.clear()
            raise

    def positions(self) -> dict[str, Position]:
        with self.db.read() as tx:
            return self._positions(tx)

    def _positions(self, tx: Tx) -> dict[str, Position]:
        found = tx.all("SELECT writer, segment, pos FROM t_positions WHERE instance = ?", (self.instance,))
        return {writer: Position(segment, pos) for writer, segment, pos in found}

    def _move(self, tx: Tx, positions: dict[str, Position]) -> None:
        if not positions:
            return
        known = self.memory.writers
        if not known.issuperset(positions):
            known |= {w for (w,) in tx.all("SELECT writer FROM t_positions WHERE instance = ?", (self.instance,))}
        for writer, p in positions.items():
            if writer in known:
                sql = "UPDATE t_positions SET segment = ?, pos = ? WHERE instance = ? AND writer = ?"
                tx.run(sql, (p.segment, p.offset, self.instance, writer))
            else:
                tx.insert("t_positions", [(self.instance, writer, p.segment, p.offset)])
                known.add(writer)

    def _apply(self, tx: Tx, items: Sequence[CallRow | Mutation]) -> None:
        calls, mutations = self._fresh(tx, items)
        if not calls and not mutations:
            return
        work = Work()
        touched = {eid_of(c.head.key, c.head.episode) for c in calls.values()}
        touched |= {eid_of(m.data["key"], m.data["episode"]) for m in mutations.values() if m.op in NAMED}
        work.eps = self._known_eps(tx, touched)
        self._idem(tx, work, mutations.values())
        for item in items:
            if isinstance(item, CallRow) and calls.pop(item.head.id, None) is not None:
                self._call(tx, work, item)
            elif isinstance(item, Mutation) and mutations.pop(item.id, None) is not None:
                work.now = max(work.now, item.at)
                self._mutation(tx, work, item)
        self._write(tx, work)

    # calls

    def _call(self, tx: Tx, work: Work, call: CallRow) -> None:
        head = call.head
        eid = eid_of(head.key, head.episode)
        ep = work.eps.get(eid)
        if (ep is not None and ep.state == "deleted") or eid in work.gone:
            return
        model = head.trained or clean(head.model) or ""
        if ep is None:
            ep = Ep(
                eid, head.key, head.episode, task=clean(head.task), split=head.split, model=model, adapter=head.adapter, arm=head.arm,
                tags=dump({clean(k): clean(v) for k, v in head.tags.items()}), started=head.at, last_at=head.at, grouped=head.grouped,
                alike=alike_of(call),
            )  # fmt: skip
            work.eps[eid] = ep
            work.new.add(eid)
        work.changed.add(eid)
        packed = pack(call)
        day = schema.day_of(head.at)
        known = self._possible(tx, ep, day, new=eid in work.new)
        made = cut(packed.texts, packed.digests, packed.prompt, packed.tools, known)
        work.calls[day].append(call_row(call, eid, ep.calls, packed, made))
        self.parents.add(day, eid, packed.known(head.id))
        if head.trained is not None:
            if not ep.trained_calls:
                ep.model, ep.adapter, ep.arm = head.trained, head.adapter, head.arm
            ep.trained_calls += 1
        if head.adapter and why_not(call) is None:
            adapters = load(ep.adapters)
            if head.adapter not in adapters:
                ep.adapters = dump([*adapters, head.adapter])
        ep.calls += 1
        ep.prompt_tokens += packed.prompt.size
        ep.completion_tokens += packed.completion.size
        ep.started, ep.last_at = min(ep.started, head.at), max(ep.last_at, head.at)
        if ep.ended is not None:
            ep.ended = max(ep.ended, head.at)
        if head.attempt:
            ep.retried = True
        if ep.retried:
            work.retried.add(eid)
        if head.done:
            work.done[eid] = None
        if head.adapter and (head.pin == "moved" or eid in work.new):
            work.pins[eid] = (eid, model, head.adapter, head.arm, head.at, True)
        work.now = max(work.now, head.at + head.seconds)

    # mutations

    def _idem(self, tx: Tx, work: Work, mutations: Collection[Mutation]) -> None:
        """Load the idempotency keys that this batch's rewards may meet."""
        eids = [
            eid_of(m.data["key"], m.data["episode"])
            for m in mutations
            if m.op == "reward" and m.data["reward"].get("key")
        ]
        if eids:
            work.idem = {
                (e, i)
                for e, i in tx.all(f"SELECT eid, idem FROM t_rewards WHERE idem IS NOT NULL AND eid {IN}", (eids,))
            }

    def _mutation(self, tx: Tx, work: Work, item: Mutation) -> None:
        data: dict[str, Any] = item.data
        match item.op:
            case "reward":
                self._reward(work, item, eid_of(data["key"], data["episode"]), RewardIn.model_validate(data["reward"]))
            case "done":
                eid = eid_of(data["key"], data["episode"])
                if eid in work.gone:
                    pass
                elif eid in work.eps:
                    work.done[eid] = None
                else:
                    work.early.setdefault(eid, item.at)
            case "episode":
                self._restore(tx, work, item)
            case "delete":
                eids = self._eids(tx, data["key"], data["episode"])
                work.gone.update(dict.fromkeys(eids))
            case "scores":
                rows = self._score(
                    tx, data["group"], ScoresIn.model_validate(data["scores"]), item.at, key=data.get("key"), force=True
                )
                for row in rows or ():
                    work.rewards.append(row)
                    work.rewarded.add(row[2])
            case "ack":
                self._ack(
                    tx,
                    data["batch"],
                    BatchAck.model_validate(data["ack"]),
                    item.at,
                    members=data.get("members"),
                    force=True,
                )
            case "adapter":
                adapter = Adapter.model_validate(data)
                # where proxies share a store its word counts: this may have waited in a spool while another proxy decided
                if not (self.db.shared and tx.all("SELECT 1 FROM t_adapters WHERE name = ?", (adapter.name,))):
                    self._put_adapter(tx, adapter)
            case "event":
                self._add_event(tx, Event.model_validate({**data, "at": data.get("at") or item.at}))
            case "cache":
                entry = CacheEntry.model_validate(data)
                self._cache_put(tx, entry.key, entry.value, entry.at or item.at)
            case "pin":
                eid = eid_of(data["key"], data["episode"])
                work.pins[eid] = (eid, data["model"], data["adapter"], data["arm"], item.at, True)
            case "blank":
                pass  # what stood here is forgotten
            case other:
                raise ValueError(f"a mutation of an unknown kind: {other}")

    def _reward(self, work: Work, item: Mutation, eid: str, given: RewardIn) -> None:
        ep = work.eps.get(eid)
        if (ep is not None and ep.state == "deleted") or eid in work.gone:
            return
        if given.key is not None:
            if (eid, given.key) in work.idem:
                return
            work.idem.add((eid, given.key))
        work.rewards.append(
            (
                item.id,
                0,
                eid,
                given.call,
                given.name,
                given.source,
                given.value,
                clean(given.reason),
                clean(given.key),
                dump(given.meta),
                item.at,
            )
        )
        work.rewarded.add(eid)

    # writing

    def _write(self, tx: Tx, work: Work) -> None:
        for day, rows in work.calls.items():
            tx.insert(schema.table_of(day), rows)
        self._insert_rewards(tx, work.rewards)
        self._early(tx, work)
        self._supersede(tx, work.retried)
        work.eps |= self._known_eps(tx, [eid for eid in work.rewarded if eid not in work.eps])
        orphans = self.memory.orphans
        scored = {eid for eid in work.rewarded if eid in work.eps} | (
            work.new if orphans is None else work.new & orphans
        )
        if orphans is not None:
            orphans -= work.new
            orphans |= work.rewarded - work.eps.keys()
        for eid, reward in self._combined(tx, scored).items():
            work.eps[eid].reward = reward
            work.changed.add(eid)
        ended = []
        for eid in work.done:
            ep = work.eps[eid]
            if ep.state == "open":
                ep.state, ep.ended = "done", max(ep.last_at, ep.ended or 0.0)
                ended.append(ep)
                work.changed.add(eid)
        full = self._join(tx, ended, work.now)
        self._write_eps(tx, work)
        self._pin_rows(tx, work.pins)
        self._unpin(tx, [ep.eid for ep in ended])
        self._complete(tx, full, work.now)
        self._ready(tx, {*full, *(g for eid in scored if (g := work.eps[eid].grp))}, work.now)
        if not self.db.shared:
            self.memory.keep(work.eps.values())
        self._forget(tx, list(work.gone), work.now)

    def _write_eps(self, tx: Tx, work: Work) -> None:
        tx.insert("t_episodes", [work.eps[eid].row() for eid in work.new])
        tx.update("t_episodes", EP_FIELDS[:1], EP_FIELDS[1:], [work.eps[eid].row() for eid in work.changed - work.new])

    def _early(self, tx: Tx, work: Work) -> None:
        """An episode may be told to be done before its calls are read."""
        late = [eid for eid in work.early if eid in work.new]
        work.done |= dict.fromkeys(late)
        if work.new:
            for (eid,) in tx.all(f"SELECT eid FROM t_early WHERE eid {IN}", (list(work.new),)):
                work.done[eid] = None
                tx.run("DELETE FROM t_early WHERE eid = ?", (eid,))
        early = {eid: at for eid, at in work.early.items() if eid not in work.new}
        if early:
            known = {eid for (eid,) in tx.all(f"SELECT eid FROM t_early WHERE eid {IN}", (list(early),))}
            tx.insert("t_early", [(eid, at) for eid, at in early.items() if eid not in known])

    def _supersede(self, tx: Tx, eids: Collection[str]) -> None:
        """Of one body's attempts in an episode all but the last are superseded, in whatever order they arrived."""
        for table in self._day_tables(tx) if eids else ():
            sql = f"""UPDATE {table} SET outcome = 'superseded', trainable = FALSE, reason = 'superseded' WHERE outcome <> 'superseded'
                AND body_hash <> '' AND eid {IN} AND EXISTS (SELECT 1 FROM {table} d WHERE d.eid = {table}.eid
                AND d.body_hash = {table}.body_hash AND d.attempt > {table}.attempt)"""
            tx.run(sql, (list(eids),))
