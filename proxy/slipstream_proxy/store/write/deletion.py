"""What leaves the store: a forgotten episode.

An episode is forgotten: its rows are deleted at once. What freed blocks, the spool and archives still hold of it
waits in ``t_erasing`` until all of them are rewritten, once for many.

Of the episode a tombstone stays, which swallows what is still to come. Its id is a hash of the episode's (``mark_of``):
a client may have written anything into that. The same hash stands in ``t_erasing``, in batches and in the audit log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from slipstream.contract import JUDGE_CACHE_PREFIX
from slipstream.contract.status import ErasingProxy
from slipstream_proxy.log.records import mark_of
from slipstream_proxy.store.conversation.calls import CallTable
from slipstream_proxy.store.learning.groups import HASH_CHARS, GroupTable, adapters_of, likeness_of
from slipstream_proxy.store.read.episodes import EpisodeTable
from slipstream_proxy.store.tables.driver import IN, Driver, Tx
from slipstream_proxy.store.tables.memory import Memory
from slipstream_proxy.store.tables.rows import (
    EpisodeRow,
    dump,
    eid_of,
    load,
    name_of,
    tombstone_of,
    with_tombstones,
)
from slipstream_proxy.store.tables.tallies import TallyTable, set_meta
from slipstream_proxy.store.values import Erasing, Forgotten, Name

SEARCH_SLACK_S = 60.0
"""Seconds around an episode's calls in which they are looked for."""
BY_EID = ("t_rewards", "t_early", "t_expired", "t_episodes", "t_pins", "t_outcomes", "t_gaps", "t_cases")
TEXT_TABLES = frozenset((*BY_EID, "t_stamps", "t_groups", "t_members", "t_exported", "t_audit", "t_cache", "t_tallies"))
"""Tables beside the calls' that may hold what a client wrote about an episode."""
ALIVE_PREFIX, AWAY_AFTER_S = "proxy/", 60.0
"""How ``t_meta`` names when a proxy was alive, and the seconds after which it is taken for away."""


@dataclass(eq=False)
class Deletion:
    db: Driver
    memory: Memory
    calls: CallTable
    episodes: EpisodeTable
    groups: GroupTable
    tallies: TallyTable
    instance: str
    extended: list[str] = field(default_factory=list)
    """Tables of plug-ins whose rows are of an episode each."""

    def delete(self, names: Collection[Name], now: float) -> Forgotten:
        """Forget these episodes: nothing reads them from here on, and what files still hold waits in ``erasing``."""
        with self.db.write() as tx:
            found = self._traces(tx, names)
            self.forget(tx, [eid_of(*name) for name in found.names], now)
        return found

    def traces(self, names: Collection[Name]) -> Forgotten:
        """What ``delete`` would say of these now."""
        with self.db.read() as tx:
            return self._traces(tx, names)

    def _traces(self, tx: Tx, names: Collection[Name]) -> Forgotten:
        asked = [eid_of(*name) for name in names]
        # of an episode that retention dropped, or that was brought in as a case, only copies may be here
        held = tx.all(f"SELECT DISTINCT eid, name FROM t_cases WHERE eid {IN}", (asked,))
        copied = {eid for eid, _ in held}
        eids = list({**self.episodes.load(tx, asked), **dict.fromkeys(copied)})
        both = list(with_tombstones(eids))
        batches = [b for (b,) in tx.all(f"SELECT DISTINCT batch FROM t_members WHERE eid {IN}", (both,))]
        sql = f"""SELECT DISTINCT d.export FROM t_exported d JOIN t_exports e ON e.id = d.export
            WHERE e.format <> 'archive' AND d.eid {IN}"""
        exports = sorted(export for (export,) in tx.all(sql, (both,)))
        sets = sorted({s for _, s in held})
        return Forgotten([name_of(eid) for eid in eids], sorted(adapters_of(tx, batches)), exports, sets, batches)

    def waiting(self) -> list[Erasing]:
        """Forgotten episodes whose bytes are still in some file of this proxy's."""
        with self.db.read() as tx:
            sql = "SELECT eid, ts, tables, archives FROM t_erasing WHERE instance = ? ORDER BY ts, eid"
            rows = tx.all(sql, (self.instance,))
        return [Erasing(*name_of(eid), at, load(tables), tuple(load(kept))) for eid, at, tables, kept in rows]

    def alive(self, now: float) -> None:
        """For the other proxies of the store: this one will erase what waits for it."""
        with self.db.write() as tx:
            set_meta(tx, ALIVE_PREFIX + self.instance, repr(now))

    def elsewhere(self, now: float) -> list[ErasingProxy]:
        """What waits for the other proxies of the store, and which of these do not answer."""
        sql = f"""SELECT e.instance, count(DISTINCT e.eid), max(m.value) FROM t_erasing e
            LEFT JOIN t_meta m ON m.name = '{ALIVE_PREFIX}' || e.instance WHERE e.instance <> ?
            GROUP BY e.instance ORDER BY e.instance"""
        with self.db.read() as tx:
            rows = tx.all(sql, (self.instance,))
        return [ErasingProxy(proxy=p, episodes=n, away=now - float(at or 0.0) > AWAY_AFTER_S) for p, n, at in rows]

    def erased(self, done: Collection[Erasing]) -> None:
        """Nothing holds these any more."""
        eids = [eid_of(e.key, e.episode) for e in done]
        with self.db.write() as tx:
            tx.run(f"DELETE FROM t_erasing WHERE instance = ? AND eid {IN}", (self.instance, eids))
            tx.run(f"DELETE FROM t_exported WHERE eid {IN}", (eids,))

    def rewrite(self, done: Collection[Erasing]) -> None:
        """Rewrite what had rows of these: freed blocks keep their bytes. Beside reads and writes."""
        with self.db.write() as tx:
            self.tallies.compact(tx, most=0)  # labels of which nothing is left
        mine = [e.tables for e in done if e.tables is not None]
        if mine or not done:
            held = {t for tables in mine for t in tables} | TEXT_TABLES | {*self.extended}
            self.db.rewrite(sorted(held))

    def eids(self, tx: Tx, key: str | None, episode: str) -> list[str]:
        """The episode's stored identities. With a key: that one, known or not. Without: those of all keys."""
        if key is not None:
            return [eid_of(key, episode)]
        return [eid for (eid,) in tx.all("SELECT eid FROM t_episodes WHERE id = ?", (episode,))]

    def forget(self, tx: Tx, eids: Collection[str], now: float) -> None:
        """Leave a tombstone of each, which swallows calls and rewards that are still to come."""
        if not eids:
            return
        known = self.episodes.load(tx, eids)
        fresh = [eid for eid in dict.fromkeys(eids) if eid not in known or known[eid].state != "deleted"]
        with self.tallies.around(tx, [*fresh, *map(tombstone_of, fresh)]):
            self._forget(tx, fresh, {eid: known[eid] for eid in fresh if eid in known}, now)

    def _forget(self, tx: Tx, eids: list[str], known: dict[str, EpisodeRow], now: float) -> None:
        eps = list(known.values())
        self.groups.leave(tx, eps)
        held = self._delete_calls(tx, eps)
        sql = f"""SELECT d.eid, d.export FROM t_exported d JOIN t_exports e ON e.id = d.export
            WHERE e.format = 'archive' AND d.eid {IN}"""
        archives: dict[str, list[str]] = defaultdict(list)
        for eid, archive in tx.all(sql, (eids,)) if eps else ():
            archives[eid].append(archive)
        sql = "SELECT DISTINCT instance FROM t_positions WHERE instance <> ?"
        others = tx.all(sql, (self.instance,)) if self.db.shared else []
        tables = {proxy: None for (proxy,) in others} | {self.instance: held}
        rows = [
            (tombstone_of(e), now, proxy, dump(t), dump(archives.get(e, [])))
            for e in eids
            for proxy, t in tables.items()
        ]
        tx.insert("t_erasing", rows)
        # a reward's id may be made of its episode's name
        tx.run(f"DELETE FROM t_stamps WHERE id IN (SELECT id FROM t_rewards WHERE eid {IN})", (eids,))
        for table in (*BY_EID, *self.extended):
            tx.run(f"DELETE FROM {table} WHERE eid {IN}", (eids,))
        for table in ("t_members", "t_exported"):
            for (eid,) in tx.all(f"SELECT DISTINCT eid FROM {table} WHERE eid {IN}", (eids,)):
                tx.run(f"UPDATE {table} SET eid = ? WHERE eid = ?", (tombstone_of(eid), eid))
        self._forget_sayings(tx, eids, eps)
        tombstones = []
        for eid in eids:
            ep = known.get(eid) or EpisodeRow(eid, *name_of(eid), started=now, last_at=now)
            tombstone = EpisodeRow(
                tombstone_of(eid), ep.key, mark_of(ep.id), split=ep.split, state="deleted", ended=now
            )
            tombstone.started, tombstone.last_at = ep.started, ep.last_at
            tombstones.append(tombstone.row())
        tx.insert("t_episodes", tombstones)
        self.groups.mark_ready(tx, {ep.grp for ep in eps if ep.grp}, now)
        self.calls.known.clear()
        self.memory.drop(eids)
        self.memory.bury(map(tombstone_of, eids))

    def _forget_sayings(self, tx: Tx, eids: Collection[str], eps: Collection[EpisodeRow]) -> None:
        """What a judge and people said of them. The judge's cache has no names: what it has answered since the first of
        them began goes, and is asked for again.
        """
        if eps:
            since = min(ep.started for ep in eps) - SEARCH_SLACK_S
            tx.run("DELETE FROM t_cache WHERE starts_with(id, ?) AND ts >= ?", (JUDGE_CACHE_PREFIX, since))
            self._forget_quotes(tx, eps, since)
        names = {name for _, name in map(name_of, eids)}
        sql = f"SELECT id, target, data FROM t_audit WHERE action IN ('label', 'assign', 'comment') AND target {IN}"
        mine = []
        for i, target, text in tx.all(sql, (list(names),)):
            data = load(text)
            if eid_of(data.pop("key"), target) in eids:
                mine.append((i, mark_of(target), dump(data | {"text": None} if "text" in data else load(text))))
        tx.update("t_audit", ("id",), ("target", "data"), mine)

    def _forget_quotes(self, tx: Tx, eps: Collection[EpisodeRow], since: float) -> None:
        """A judge reads runs side by side: what it noted of those that it read beside these may quote them. The values
        stay.
        """
        notes = (
            "UPDATE t_rewards SET reason = NULL WHERE source = 'judge' AND reason IS NOT NULL AND ts >= ? AND eid IN"
        )
        if groups := list({ep.grp for ep in eps if ep.grp}):
            tx.run(f"{notes} (SELECT eid FROM t_episodes WHERE grp {IN})", (since, groups))
        alike = (
            "SELECT eid FROM t_episodes WHERE NOT grouped AND key = ? AND model = ? AND "
            f"substr(alike, 1, {HASH_CHARS}) = ?"
        )
        for kind in {(ep.key, ep.model, likeness_of(ep.alike)) for ep in eps if not ep.grouped}:
            tx.run(f"{notes} ({alike})", (since, *kind))

    def _delete_calls(self, tx: Tx, eps: list[EpisodeRow]) -> list[str]:
        """→ Tables that had calls of these."""
        if not eps:
            return []
        eids = [ep.eid for ep in eps]
        # The times let most of a table be passed over; its clock may have been set, so they are wide.
        since, until = min(ep.started for ep in eps) - SEARCH_SLACK_S, max(ep.last_at for ep in eps) + SEARCH_SLACK_S
        tables = self.calls.days.tables_of(tx, eps)
        with self.tallies.around_calls(tx, tables, eids):
            sql = f"WHERE eid {IN} AND ts >= ? AND ts <= ?"
            return [table for table in tables if tx.run(f"DELETE FROM {table} {sql}", (eids, since, until))]
