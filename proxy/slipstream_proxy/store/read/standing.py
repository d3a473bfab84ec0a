"""How episodes stand to a reward, an end mark or words about them: all that their answer needs, in one question."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from slipstream_proxy.store.conversation.calls import CallTable
from slipstream_proxy.store.tables.driver import IN, Driver, Tx
from slipstream_proxy.store.tables.memory import Memory
from slipstream_proxy.store.tables.rows import EpisodeRow, eid_of, name_of, tombstone_of, with_tombstones
from slipstream_proxy.store.values import How, Name, RewardAsk, Rules, Standing

MAX_OWNERS_TOLD = 4
"""Keys that are told of those which have an episode of an id."""


class _StandingRow(NamedTuple):
    """What is read of an episode."""

    state: str
    split: str
    started: float
    last_at: float


def _how(ep: _StandingRow | None, *, late: bool) -> How:
    if ep is None:
        return "late" if late else "new"
    return "forgotten" if ep.state == "deleted" else "known"


class StandingTable:
    def __init__(self, db: Driver, rules: Rules, memory: Memory, calls: CallTable) -> None:
        self.db, self.rules, self.memory, self.calls = db, rules, memory, calls

    def ask(self, asks: Sequence[RewardAsk], now: float) -> list[Standing]:
        """In their order. What was recorded a moment ago is remembered, and asked of nobody."""
        rest = [ask for ask in asks if ask.anyone or ask.call or ask.idempotency or self._remembered(ask) is None]
        found = self._looked_up(rest, now) if rest else {}
        return [found.get(ask) or self._of(ask, self._remembered(ask)) for ask in asks]

    def at_once(self, ask: RewardAsk) -> Standing | None:
        """How it stands if nobody need be asked, as of a run that has begun and was not forgotten; None: ``ask``.

        No words are about it: it does not say the split of a run that ended long ago.
        """
        if ask.anyone or ask.call or ask.idempotency:
            return None
        if (ep := self._remembered(ask)) is not None:
            return self._of(ask, ep)
        eid, tombstones = eid_of(ask.key, ask.episode), self.memory.tombstones
        gone = tombstones is None or eid in tombstones or tombstone_of(eid) in tombstones
        return None if gone or not ask.begun else Standing("new", ask.key)

    def _remembered(self, ask: RewardAsk) -> EpisodeRow | None:
        ep = self.memory.episodes.get(eid_of(ask.key, ask.episode))
        return ep if ep is not None and ep.state != "deleted" else None

    @staticmethod
    def _of(ask: RewardAsk, ep: EpisodeRow | None) -> Standing:
        return Standing("known", ask.key, owners=(ask.key,), split=ep.split if ep is not None else None)

    def _looked_up(self, asks: Sequence[RewardAsk], now: float) -> dict[RewardAsk, Standing]:
        with self.db.read() as tx:
            owners = self._owners(tx, [ask for ask in asks if ask.anyone or not ask.begun])
            eids = {ask: eid_of(ask.of(owners[ask.episode]), ask.episode) for ask in asks}
            known = self._known(tx, eids.values())
            new = [eid for ask, eid in eids.items() if eid not in known and not ask.begun]
            late = self._late(tx, new, now) if new else set()
            said = self._said(tx, eids)
            calls = {
                ask: self.calls.has(tx, eid, ask.call, known[eid].started, known[eid].last_at)
                for ask, eid in eids.items()
                if ask.call and eid in known
            }
        found = {}
        for ask, eid in eids.items():
            ep = known.get(eid)
            found[ask] = Standing(
                _how(ep, late=eid in late),
                name_of(eid)[0],
                stored=(eid, ask.idempotency) not in said,
                owners=tuple(owners[ask.episode]),
                call=calls.get(ask, True),
                split=ep.split if ep is not None else None,
            )
        return found

    def of(self, names: Collection[Name], now: float) -> dict[Name, Literal["new", "known", "gone"]]:
        """Of many, by their keys and ids. ``gone``: forgotten, or never seen within ``orphan_ttl``."""
        eids = {eid_of(*name): name for name in names}
        with self.db.read() as tx:
            known = self._known(tx, eids)
            new = [eid for eid in eids if eid not in known]
            late = self._late(tx, new, now) if new else set()
        gone = late | {eid for eid, ep in known.items() if ep.state == "deleted"}
        return {name: "gone" if eid in gone else "known" if eid in known else "new" for eid, name in eids.items()}

    def _known(self, tx: Tx, eids: Collection[str]) -> dict[str, _StandingRow]:
        """Those that are stored, forgotten ones among them."""
        asked = with_tombstones(eids)
        columns = "eid, state, split, started, last_at"
        rows = tx.all(f"SELECT {columns} FROM t_episodes WHERE eid {IN}", (list(asked),))
        return {asked[eid]: _StandingRow(*found) for eid, *found in rows}

    def _owners(self, tx: Tx, asks: Sequence[RewardAsk]) -> dict[str, list[str]]:
        """Episode → keys that have one of this id. Of a run that has begun, with its own key, nobody asks."""
        ids = list({ask.episode for ask in asks})
        found: dict[str, list[str]] = defaultdict(list)
        if not ids:
            return found
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
