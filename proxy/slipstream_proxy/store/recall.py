"""What the ingester must know before it writes: what is stored already, from memory where that is sure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from slipstream_proxy.records import Mutation
from slipstream_proxy.store import schema
from slipstream_proxy.store.base import IN, Base
from slipstream_proxy.store.compact import Known, Whole, digest
from slipstream_proxy.store.driver import Tx
from slipstream_proxy.store.protocol import CallRow
from slipstream_proxy.store.rows import C, Ep, dump, ids_of, whole


class Recall(Base):
    def _fresh(self, tx: Tx, items: Sequence[CallRow | Mutation]) -> tuple[dict[str, CallRow], dict[str, Mutation]]:
        """The items that are not stored yet, by id; mutations are noted as seen."""
        calls = {i.head.id: i for i in reversed(items) if isinstance(i, CallRow)}
        mutations = {i.id: i for i in reversed(items) if isinstance(i, Mutation)}
        self._remember(tx)
        fresh = self.memory.calls
        by_day: dict[str, list[str]] = defaultdict(list)
        known = fresh.stored(calls)
        for call_id in fresh.unsure(calls):
            by_day[schema.day_of(calls[call_id].head.at)].append(call_id)
        for day, ids in by_day.items():
            known += self._stored(tx, schema.table_of(day), ids)
        for call_id in known:
            del calls[call_id]
        fresh.add(calls)
        fresh = self.memory.mutations
        for known_id in {*fresh.stored(mutations), *self._stored(tx, "t_seen", fresh.unsure(mutations))}:
            del mutations[known_id]
        tx.insert("t_seen", [(m.id, m.at) for m in mutations.values()])
        fresh.add(mutations)
        return calls, mutations

    def _remember(self, tx: Tx) -> None:
        """Learn what is stored, where nobody else writes."""
        memory = self.memory
        if self.db.shared or memory.calls.ready:
            return
        highest = [r[0] for table in self._day_tables(tx) for r in tx.all(f"SELECT max(id) FROM {table}") if r[0]]
        memory.calls.begin(max(highest, default=None))
        memory.mutations.begin(tx.all("SELECT max(id) FROM t_seen")[0][0])
        sql = "SELECT DISTINCT eid FROM t_rewards WHERE eid NOT IN (SELECT eid FROM t_episodes)"
        memory.orphans = {eid for (eid,) in tx.all(sql)}

    def _known_eps(self, tx: Tx, eids: Collection[str]) -> dict[str, Ep]:
        """The episodes that there are of these."""
        hot = self.memory.episodes
        found = {eid: hot[eid] for eid in eids if eid in hot}
        rest = [eid for eid in eids if eid not in hot]
        if rest and not self.db.shared:
            # Most are new: the one narrow column says so faster than all of them.
            rest = [eid for (eid,) in tx.all(f"SELECT eid FROM t_episodes WHERE eid {IN}", (rest,))]
        return found | self._load(tx, rest)

    def _stored(self, tx: Tx, table: str, ids: list[str]) -> list[str]:
        if not ids:
            return []
        if self.db.shared:
            return [i for (i,) in tx.all(f"SELECT id FROM {table} WHERE id {IN}", (ids,))]
        # Ids sort by time, so that the range passes nearly all of a table over. (Another database may sort text in another order.)
        sql = f"SELECT id FROM {table} WHERE id >= ? AND id <= ? AND id {IN}"
        return [i for (i,) in tx.all(sql, (min(ids), max(ids), ids))]

    def _possible(self, tx: Tx, ep: Ep, day: str, *, new: bool) -> list[Known]:
        """Possible parents of the episode's next call, from memory or, after a restart, from the table."""
        known = self.parents.get(day, ep.eid)
        if known is None:
            known = []
            if ep.calls and not new:
                parents: dict[str, Whole] = {}
                for row in self._call_rows(tx, [ep])[ep.eid]:
                    made = whole(row, parents)
                    if schema.day_of(row[C["ts"]]) == day:
                        texts = [dump(m) for m in made.sequence]
                        known.append(
                            Known(
                                row[C["id"]],
                                [digest(t) for t in texts],
                                ids_of(made.sequence_ids.tobytes()),
                                dump(made.tools),
                            )
                        )
            self.parents.put(day, ep.eid, known)
        return self.parents.get(day, ep.eid) or []
