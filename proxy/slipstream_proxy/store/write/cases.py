"""Sets of cases: copies of episodes that a new version is tried on before it goes live.

A copy is made when an episode is added, so that retention does not end it and a set stays what it was. A set has a
version, which grows with each change. Each row says from which version on it belongs to the set, and at which it left.
Forgetting an episode deletes its copies from every version.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from slipstream.contract import (
    Case,
    CasePage,
    CaseSet,
    EpisodeDetail,
)
from slipstream.models import read_model
from slipstream_proxy.store.tables.driver import IN, Driver, Tx
from slipstream_proxy.store.tables.rows import (
    clean,
    dump,
    eid_of,
    load,
    name_of,
)
from slipstream_proxy.store.values import Name

PAGE_CHARACTERS = 8 * 2**20
"""JSON text of the episodes on one page, about; one alone may weigh more."""

IN_SET_CONDITION = "version <= ? AND (gone IS NULL OR gone > ?)"
"""Whether a row belongs to the set at a version (given twice)."""


class CaseRow(NamedTuple):
    """A row of ``t_cases``."""

    name: str
    eid: str
    version: int
    gone: int | None
    task: str | None
    tags: str
    reward: float | None
    calls: int
    ts: float
    body: str

    def public(self, *, whole: bool) -> Case:
        key, episode = name_of(self.eid)
        return Case(
            key=key,
            episode=episode,
            task=self.task,
            tags=load(self.tags),
            reward=self.reward,
            calls=self.calls,
            since=self.version,
            added=self.ts,
            detail=read_model(EpisodeDetail, self.body) if whole else None,
        )


def _changed(detail: EpisodeDetail, text: str, stored: str) -> bool:
    return text != stored and detail != read_model(EpisodeDetail, stored)


class CaseTable:
    def __init__(self, db: Driver) -> None:
        self.db = db

    def sets(self, name: str | None = None) -> list[CaseSet]:
        """All sets, or the one of this name, by name, each at its newest version."""
        sql = """SELECT s.name, s.version, s.changed, count(c.eid) FROM t_case_sets s
            LEFT JOIN t_cases c ON c.name = s.name AND c.gone IS NULL WHERE (? = '' OR s.name = ?)
            GROUP BY s.name, s.version, s.changed ORDER BY s.name"""
        with self.db.read() as tx:
            rows = tx.all(sql, (name or "", name or ""))
        return [CaseSet(name=n, version=version, changed=at, cases=cases) for n, version, at, cases in rows]

    def page(self, name: str, version: int | None, after: str, limit: int, *, whole: bool) -> CasePage | None:
        """Cases of a set in the order of their identities, those after ``after``. None: there is no such set."""
        found = self.sets(name)
        if not found:
            return None
        at = found[0].version if version is None else version
        sql = (
            f"SELECT eid, length(body) FROM t_cases WHERE name = ? AND {IN_SET_CONDITION} AND eid "
            "> ? ORDER BY eid LIMIT ?"
        )
        with self.db.read() as tx:
            sizes = tx.all(sql, (name, at, at, after, limit + 1))
            eids: list[str] = []
            weight = 0
            for eid, size in sizes[:limit]:
                weight += size if whole else 0
                if eids and weight > PAGE_CHARACTERS:
                    break
                eids.append(eid)
            sql = (
                f"SELECT {', '.join(CaseRow._fields)} FROM t_cases WHERE name = ? AND "
                f"{IN_SET_CONDITION} AND eid {IN} ORDER BY eid"
            )
            rows = [CaseRow(*row) for row in tx.all(sql, (name, at, at, eids))] if eids else []
        more = eids[-1] if len(eids) < len(sizes) else None
        return CasePage(set=found[0], version=at, cases=[row.public(whole=whole) for row in rows], next=more)

    def moved(self, name: str, version: int) -> int:
        """How many cases joined, left or were replaced at a version."""
        sql = "SELECT count(DISTINCT eid) FROM t_cases WHERE name = ? AND (version = ? OR gone = ?)"
        with self.db.read() as tx:
            return int(tx.all(sql, (name, version, version))[0][0])

    def whole(self, name: str, version: int, names: Collection[Name]) -> list[EpisodeDetail]:
        """These cases of a set at a version, as far as it has them, in any order."""
        sql = f"SELECT body FROM t_cases WHERE name = ? AND {IN_SET_CONDITION} AND eid {IN}"
        with self.db.read() as tx:
            rows = tx.all(sql, (name, version, version, [eid_of(*one) for one in names]))
        return [read_model(EpisodeDetail, body) for (body,) in rows]

    def labelled(self, model: str, without: str, most: int) -> list[Name]:
        """(key, id) of a model's ended episodes that people rewarded, newest first. ``without``: a set."""
        sql = """SELECT e.eid FROM t_episodes e WHERE e.model = ? AND e.state = 'done' AND e.error IS NULL
            AND e.eid IN (SELECT eid FROM t_rewards WHERE source = 'human') AND e.eid NOT IN (
            SELECT eid FROM t_cases WHERE name = ? AND gone IS NULL) ORDER BY e.started DESC LIMIT ?"""
        with self.db.read() as tx:
            rows = tx.all(sql, (model, without, most))
        return [name_of(eid) for (eid,) in rows]

    def named(self, key: str | None, ids: Collection[str], tags: Mapping[str, str]) -> list[Name]:
        """(key, id) of episodes of which some set has a copy: of this key or (None) any, one of these ids or (none
        given) any, with these tags.
        """
        with self.db.read() as tx:
            rows = tx.all("SELECT DISTINCT eid, tags FROM t_cases")
        found = {name_of(eid) for eid, held in rows if tags.items() <= load(held).items()}
        return sorted((k, i) for k, i in found if key in (None, k) and (not ids or i in ids))

    # out of the log

    def add(self, tx: Tx, name: str, version: int, copies: Mapping[str, tuple[str, float]]) -> None:
        """The set has these copies (episode → its JSON, and when it was added) from ``version`` on, instead of earlier
        ones. The same copy again changes nothing.
        """
        sql = f"SELECT eid, body FROM t_cases WHERE name = ? AND gone IS NULL AND eid {IN}"
        there: dict[str, str] = dict(tx.all(sql, (name, list(copies))))
        rows = []
        for eid, (text, now) in copies.items():
            detail = read_model(EpisodeDetail, text)
            if eid not in there or _changed(detail, text, there[eid]):
                tags, task = dump({clean(k): clean(v) for k, v in detail.tags.items()}), clean(detail.task)
                calls = len(detail.call_list)
                rows.append(CaseRow(name, eid, version, None, task, tags, detail.reward, calls, now, text))
        if rows:
            eids = [row.eid for row in rows]
            tx.run(f"DELETE FROM t_cases WHERE name = ? AND version = ? AND eid {IN}", (name, version, eids))
            self._leave(tx, name, version, eids)
            tx.insert("t_cases", rows)
            self._touch(tx, name, version, rows[0].ts)

    def remove(self, tx: Tx, name: str, version: int, eid: str, now: float) -> None:
        """The set has no such case from ``version`` on."""
        if self._leave(tx, name, version, [eid]):
            self._touch(tx, name, version, now)

    def drop(self, tx: Tx, name: str) -> None:
        """The set goes with all its versions."""
        for table in ("t_cases", "t_case_sets"):
            tx.run(f"DELETE FROM {table} WHERE name = ?", (name,))

    def _leave(self, tx: Tx, name: str, version: int, eids: list[str]) -> int:
        sql = f"UPDATE t_cases SET gone = ? WHERE name = ? AND gone IS NULL AND eid {IN}"
        return tx.run(sql, (version, name, eids))

    def _touch(self, tx: Tx, name: str, version: int, now: float) -> None:
        found = tx.all("SELECT version FROM t_case_sets WHERE name = ?", (name,))
        if not found:
            tx.insert("t_case_sets", [(name, version, now)])
        elif found[0][0] < version:
            tx.run("UPDATE t_case_sets SET version = ?, changed = ? WHERE name = ?", (version, now, name))
