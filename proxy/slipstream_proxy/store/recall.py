"""What the ingester must know before it writes: what is stored already, from memory where that is sure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slipstream_proxy.records import Mutation
from slipstream_proxy.store import schema
from slipstream_proxy.store.calls import CallTable
from slipstream_proxy.store.driver import IN, Driver, Tx
from slipstream_proxy.store.episodes import EpisodeTable
from slipstream_proxy.store.memory import Memory
from slipstream_proxy.store.rewards import RewardTable
from slipstream_proxy.store.rows import EpisodeRow
from slipstream_proxy.store.values import RecordedCall


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
        if memory.orphans is None:
            memory.orphans = self.rewards.orphans(tx)

    def known(self, tx: Tx, eids: Collection[str]) -> dict[str, EpisodeRow]:
        """The episodes that there are of these."""
        hot = self.memory.episodes
        found = {eid: hot[eid] for eid in eids if eid in hot}
        rest = [eid for eid in eids if eid not in hot]
        if rest and not self.db.shared:
            # Most are new: the one narrow column says so faster than all of them.
            rest = [eid for (eid,) in tx.all(f"SELECT eid FROM t_episodes WHERE eid {IN}", (rest,))]
        return found | self.episodes.load(tx, rest)
