"""What all parts of ``SqlStore`` share: the driver, the rules, days, and reading calls back."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable

from slipstream.contract import EpisodeDetail, Lineage, Reward
from slipstream_proxy.store import schema
from slipstream_proxy.store.compact import Parents, Whole
from slipstream_proxy.store.driver import Driver, Row, Tx
from slipstream_proxy.store.memory import Memory
from slipstream_proxy.store.protocol import Rules
from slipstream_proxy.store.rows import EP_COLUMNS, REWARD_COLUMNS, Ep, call_public, dump, load, reward_public, whole

log = logging.getLogger("slipstream.store")

IN = "IN (SELECT unnest(?::VARCHAR[]))"
CALL_COLUMNS = ", ".join(schema.CALLS)
TOKEN_COLUMNS = ", ".join(
    "NULL AS " + c if c in ("messages", "tools", "reply", "sampling", "extra", "error") else c for c in schema.CALLS
)


class Base:
    def __init__(self, db: Driver, rules: Rules, *, instance: str = "local") -> None:
        self.db = db
        self.rules = rules
        self.instance = instance
        self.parents = Parents()
        self.memory = Memory()
        self._days: set[str] = set()
        with db.write() as tx:
            schema.prepare(tx, keyed=db.shared)
        with db.read() as tx:
            self._days = {day for (day,) in tx.all("SELECT day FROM t_days")}
        db.settle()

    @property
    def rebuilt(self) -> bool:
        return self.db.rebuilt

    @property
    def shared(self) -> bool:
        return self.db.shared

    # days

    def _day_tables(self, tx: Tx, since: float | None = None, until: float | None = None) -> list[str]:
        """Tables of the days from ``since`` to ``until`` that there are, oldest first."""
        days = {day for (day,) in tx.all("SELECT day FROM t_days")} if self.db.shared else self._days
        first = "" if since is None else schema.day_of(since)
        last = "~" if until is None else schema.day_of(until)
        return [schema.table_of(day) for day in sorted(days) if first <= day <= last]

    def _ensure_days(self, days: Iterable[str]) -> None:
        missing = sorted(set(days) - self._days)
        if not missing:
            return
        with self.db.write() as tx:
            known = {day for (day,) in tx.all("SELECT day FROM t_days")}
            for day in missing:
                if day not in known:
                    for statement in schema.create_sql(schema.table_of(day), keyed=self.db.shared):
                        tx.run(statement)
                    tx.run("INSERT INTO t_days VALUES (?)", (day,))
            tx.run(schema.view_sql(known | set(missing)))
        self._days |= known | set(missing)
        self.db.settle()

    # reading

    def _load(self, tx: Tx, eids: Collection[str]) -> dict[str, Ep]:
        if not eids:
            return {}
        return {
            row[0]: Ep(*row) for row in tx.all(f"SELECT {EP_COLUMNS} FROM t_episodes WHERE eid {IN}", (list(eids),))
        }

    def _call_rows(self, tx: Tx, eps: Collection[Ep], columns: str = CALL_COLUMNS) -> dict[str, list[Row]]:
        """Rows of the episodes' calls, in order of their numbers."""
        found: dict[str, list[Row]] = defaultdict(list)
        if not eps:
            return found
        since, until = min(e.started for e in eps), max(e.last_at for e in eps)
        eids = [e.eid for e in eps]
        for table in self._day_tables(tx, since, until):
            # The times let whole row groups be passed over: the tables have no index on episodes everywhere.
            sql = f"SELECT {columns} FROM {table} WHERE eid {IN} AND ts >= ? AND ts <= ?"
            for row in tx.all(sql, (eids, since, until)):
                found[row[1]].append(row)
        for rows in found.values():
            rows.sort(key=lambda r: r[2])
        return found

    def _rewards(self, tx: Tx, eps: Collection[Ep]) -> dict[str, list[Reward]]:
        found: dict[str, list[Reward]] = defaultdict(list)
        if eps:
            adapter = {e.eid: e.adapter for e in eps}
            for row in tx.all(f"SELECT {REWARD_COLUMNS} FROM t_rewards WHERE eid {IN} ORDER BY seq", (list(adapter),)):
                found[row[0]].append(reward_public(row, adapter[row[0]]))
        return found

    def _details(self, tx: Tx, eps: Collection[Ep], *, tokens: bool = False) -> dict[str, EpisodeDetail]:
        """Episodes with calls, rewards, batches and adapters trained on them, in the order given."""
        calls, rewards = self._call_rows(tx, eps), self._rewards(tx, eps)
        lineage: dict[str, list[Row]] = defaultdict(list)
        if eps:
            sql = f"""SELECT m.eid, m.batch, m.advantage, b.state, b.adapter FROM t_members m JOIN t_batches b ON b.id = m.batch
                WHERE m.eid {IN} ORDER BY b.created"""
            for row in tx.all(sql, ([e.eid for e in eps],)):
                lineage[row[0]].append(row)
        made = {}
        for ep in eps:
            parents: dict[str, Whole] = {}
            trained = [r for r in lineage[ep.eid] if r[3] == "trained"]
            made[ep.eid] = EpisodeDetail(
                **ep.public().model_dump(), call_list=[call_public(r, whole(r, parents), tokens=tokens) for r in calls[ep.eid]],
                rewards=rewards[ep.eid], advantage=trained[-1][2] if trained else None, batches=[r[1] for r in trained],
                trained_adapters=sorted(self._adapters_of(tx, [r[1] for r in trained])),
                lineage=[
                    Lineage(batch=r[1], outcome=r[3], adapter=r[4], advantage=r[2]) for r in lineage[ep.eid] if r[3] in ("trained", "skipped")
                ],
            )  # fmt: skip
        return made

    def _adapters_of(self, tx: Tx, batches: Collection[str]) -> set[str]:
        """Adapters that were trained on one of these batches: what the ack said, and what the adapters themselves say."""
        if not batches:
            return set()
        found = {
            a
            for (a,) in tx.all(f"SELECT adapter FROM t_batches WHERE state = 'trained' AND id {IN}", (list(batches),))
            if a
        }
        for name, body in tx.all("SELECT name, body FROM t_adapters"):
            if not set(batches).isdisjoint(load(body)["batches"]):
                found.add(name)
        return found

    # small things

    def _meta(self, tx: Tx, name: str) -> str | None:
        found = tx.all("SELECT value FROM t_meta WHERE name = ?", (name,))
        return found[0][0] if found else None

    def _set_meta(self, tx: Tx, name: str, value: str) -> None:
        if not tx.run("UPDATE t_meta SET value = ? WHERE name = ?", (value, name)):
            tx.run("INSERT INTO t_meta VALUES (?, ?)", (name, value))


__all__ = ["CALL_COLUMNS", "IN", "TOKEN_COLUMNS", "Base", "dump", "log"]
