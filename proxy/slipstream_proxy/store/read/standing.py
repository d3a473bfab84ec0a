"""How episodes stand to a reward, an end mark or words about them: all that their answer needs, in one question."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from slipstream_proxy.store.conversation.calls import CallTable
from slipstream_proxy.store.tables.driver import IN, Driver, Tx
from slipstream_proxy.store.tables.memory import Memory
from slipstream_proxy.store.tables.rows import EpisodeRow, eid_of, name_of, with_tombs
from slipstream_proxy.store.values import How, RewardAsk, Rules, Standing

MAX_OWNERS_TOLD = 4
"""Keys that are told of those which have an episode of an id."""


class _StandingRow(NamedTuple):
    """What is read of an episode."""

    state: str
    split: str
    started: float
    last_at: float


class StandingTable:
    def __init__(self, db: Driver, rules: Rules, memory: Memory, calls: CallTable) -> None:
        self.db, self.rules, self.memory, self.calls = db, rules, memory, calls

    def ask(self, asks: Sequence[RewardAsk], now: float) -> list[Standing]:
        """In their order. What was recorded a moment ago is remembered, and asked of nobody."""
        rest = [ask for ask in asks if ask.anyone or ask.call or ask.idempotency or self._remembered(ask) is None]
        found = self._looked_up(rest, now) if rest else {}
        return [found.get(ask) or self._of(ask, self._remembered(ask)) for ask in asks]

    def _remembered(self, ask: RewardAsk) -> EpisodeRow | None:
        ep = self.memory.episodes.get(eid_of(ask.key, ask.episode))
        return ep if ep is not None and ep.state != "deleted" else None

    @staticmethod
    def _of(ask: RewardAsk, ep: EpisodeRow | None) -> Standing:
        return Standing("known", ask.key, owners=(ask.key,), split=ep.split if ep is not None else None)

    def _looked_up(self, asks: Sequence[RewardAsk], now: float) -> dict[RewardAsk, Standing]:
        with self.db.read() as tx:
            owners = self._owners(tx, asks)
            eids = {ask: eid_of(ask.of(owners[ask.episode]), ask.episode) for ask in asks}
            asked = with_tombs(eids.values())
            columns = "eid, state, split, started, last_at"
            rows = tx.all(f"SELECT {columns} FROM t_episodes WHERE eid {IN}", (list(asked),))
            known = {asked[eid]: _StandingRow(*found) for eid, *found in rows}
            new = [eid for ask, eid in eids.items() if eid not in known and not ask.begun]
            late = self._late(tx, new, now) if new else set()
            said = self._said(tx, eids)
            calls = {
                a: self._has_call(tx, eid, known[eid], a.call) for a, eid in eids.items() if a.call and eid in known
            }
        found = {}
        for ask, eid in eids.items():
            ep = known.get(eid)
            how: How = "late" if eid in late else "new" if ep is None else "known"
            if ep is not None and ep.state == "deleted":
                how = "forgotten"
            found[ask] = Standing(
                how,
                name_of(eid)[0],
                stored=(eid, ask.idempotency) not in said,
                owners=tuple(owners[ask.episode]),
                call=calls.get(ask, True),
                split=ep.split if ep is not None else None,
            )
        return found

    def _owners(self, tx: Tx, asks: Sequence[RewardAsk]) -> dict[str, list[str]]:
        """Episode → keys that have one of this id."""
        ids = list({ask.episode for ask in asks})
        found: dict[str, list[str]] = defaultdict(list)
        sql = f"SELECT id, key FROM t_episodes WHERE id {IN} AND state <> 'deleted' ORDER BY key"
        for name, key in tx.all(sql, (ids,)):
            if len(found[name]) < MAX_OWNERS_TOLD:
                found[name].append(key)
        return found

    def _late(self, tx: Tx, eids: Sequence[str], now: float) -> set[str]:
        """Those whose rewards have waited ``orphan_ttl`` for a call."""
        old = f"SELECT eid FROM t_rewards WHERE eid {IN} GROUP BY eid HAVING min(ts) < ?"
        late = {eid for (eid,) in tx.all(old, (list(eids), now - self.rules.orphan_ttl))}
        return late | {eid for (eid,) in tx.all(f"SELECT eid FROM t_expired WHERE eid {IN}", (list(eids),))}

    def _said(self, tx: Tx, eids: dict[RewardAsk, str]) -> set[tuple[str, str]]:
        idems = [ask.idempotency for ask in eids if ask.idempotency]
        if not idems:
            return set()
        same = f"SELECT eid, idem FROM t_rewards WHERE eid {IN} AND idem {IN}"
        return {(eid, idem) for eid, idem in tx.all(same, ([*eids.values()], idems))}

    def _has_call(self, tx: Tx, eid: str, ep: _StandingRow, call: str | None) -> bool:
        tables = self.calls.days.tables(tx, ep.started, ep.last_at)
        return any(tx.all(f"SELECT 1 FROM {t} WHERE eid = ? AND id = ? LIMIT 1", (eid, call)) for t in tables)
