"""Reading: lists and details of episodes, exports, what the gate and the page compare, days."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

from slipstream.contract import EpisodeDetail, EpisodePage
from slipstream_proxy.store import schema
from slipstream_proxy.store.base import Base
from slipstream_proxy.store.protocol import EpisodeFilter
from slipstream_proxy.store.rows import EP_COLUMNS, Ep, cursor_of, dump, parse_cursor


def where_of(wanted: EpisodeFilter) -> tuple[str, list[Any]]:
    """The filter as SQL. Raises ``ValueError`` for a cursor that is not ours."""
    tests = ["state <> 'deleted'" if wanted.state is None else "state = ?"]
    params: list[Any] = [] if wanted.state is None else [wanted.state]
    for column in ("key", "task", "split", "model"):
        if (value := getattr(wanted, column)) is not None:
            tests.append(f"{column} = ?")
            params.append(value)
    for test, value in (
        ("reward >= ?", wanted.reward_min), ("reward <= ?", wanted.reward_max), ("started >= ?", wanted.since), ("started < ?", wanted.until),
    ):  # fmt: skip
        if value is not None:
            tests.append(test)
            params.append(value)
    if wanted.adapter is not None:
        tests.append("(adapter = ? OR strpos(adapters, ?) > 0)")
        params += [wanted.adapter, dump(wanted.adapter)]
    for name, tag in wanted.tags.items():
        # Tags are compact JSON, in which this text cannot stand but as that pair.
        tests.append("strpos(tags, ?) > 0")
        params.append(dump({name: tag})[1:-1])
    if wanted.cursor:
        started, eid = parse_cursor(wanted.cursor)
        tests.append("(started < ? OR (started = ? AND eid < ?))")
        params += [started, started, eid]
    return " AND ".join(tests), params


class Looking(Base):
    def _page(self, wanted: EpisodeFilter) -> tuple[list[Ep], str | None]:
        where, params = where_of(wanted)
        sql = f"SELECT {EP_COLUMNS} FROM t_episodes WHERE {where} ORDER BY started DESC, eid DESC LIMIT ?"
        with self.db.read() as tx:
            eps = [Ep(*r) for r in tx.all(sql, (*params, wanted.limit + 1))]
        more = len(eps) > wanted.limit
        eps = eps[: wanted.limit]
        return eps, cursor_of(eps[-1].started, eps[-1].eid) if more else None

    def episodes(self, wanted: EpisodeFilter) -> EpisodePage:
        """The newest first. Raises ``ValueError`` for a cursor that is not ours."""
        eps, after = self._page(wanted)
        return EpisodePage(episodes=[e.public() for e in eps], next=after)

    def episode(self, key: str | None, episode: str, *, tokens: bool = False) -> EpisodeDetail | None:
        """One episode with all that is known; None: unknown or deleted. Without a key the newest of that name."""
        where, params = ("id = ?", (episode,)) if key is None else ("eid = ?", (f"{key}/{episode}",))
        with self.db.read() as tx:
            sql = f"SELECT {EP_COLUMNS} FROM t_episodes WHERE {where} AND state <> 'deleted' ORDER BY started DESC LIMIT 1"
            rows = tx.all(sql, params)
            if not rows:
                return None
            ep = Ep(*rows[0])
            return self._details(tx, [ep], tokens=tokens)[ep.eid]

    def export(self, wanted: EpisodeFilter, batch: int = 100) -> Iterator[list[EpisodeDetail]]:
        """Every episode that the filter wants (its ``limit`` apart), with tokens, ``batch`` at a time, the newest first."""
        wanted = replace(wanted, limit=batch)
        while True:
            eps, after = self._page(wanted)
            if eps:
                with self.db.read() as tx:
                    details = list(self._details(tx, eps, tokens=True).values())
                yield details
            if after is None:
                return
            wanted = replace(wanted, cursor=after)

    def ranked(
        self, wanted: EpisodeFilter, most: int = 4
    ) -> Iterator[tuple[list[tuple[str, str]], list[tuple[str, str]]]]:
        """Of each (key, model, task) with rewards that differ: the (key, id) of its best runs, and of its worst, at most ``most`` of each."""
        where, params = where_of(replace(wanted, cursor=None))
        sql = f"""SELECT key, model, task, id, best, worst FROM (SELECT key, model, task, id, reward,
            row_number() OVER (PARTITION BY key, model, task ORDER BY reward DESC, eid) AS best,
            row_number() OVER (PARTITION BY key, model, task ORDER BY reward, eid DESC) AS worst,
            min(reward) OVER (PARTITION BY key, model, task) AS low, max(reward) OVER (PARTITION BY key, model, task) AS high
            FROM t_episodes WHERE {where} AND task IS NOT NULL AND reward IS NOT NULL AND calls > 0) q
            WHERE low < high AND (best <= ? OR worst <= ?) ORDER BY key, model, task, best"""
        with self.db.read() as tx:
            rows = tx.all(sql, (*params, most, most))
        for _, group in groupby(rows, key=lambda r: r[:3]):
            runs = list(group)
            best = [(r[0], r[3]) for r in runs if r[4] <= most]
            worst = [(r[0], r[3]) for r in sorted(runs, key=lambda r: r[5]) if r[5] <= most]
            yield best, worst

    def arm_rewards(self, candidate: str, control: str) -> list[tuple[str, str, float]]:
        """(task, adapter, reward) of done train episodes of these two adapters, oldest first. Ungrouped ones go by what they are alike by."""
        sql = """SELECT CASE WHEN grouped THEN task ELSE alike END, adapter, reward FROM t_episodes WHERE state = 'done' AND split = 'train'
            AND reward IS NOT NULL AND adapter IN (?, ?) ORDER BY ended, eid"""
        with self.db.read() as tx:
            return [(task or "", adapter, reward) for task, adapter, reward in tx.all(sql, (candidate, control))]

    def success_by_adapter(self) -> list[dict[str, Any]]:
        """For the page: adapter, split, arm, episodes, mean reward, std (of the sample; 0 for one)."""
        sql = """SELECT model, adapter, split, arm, count(*), avg(reward), coalesce(stddev_samp(reward), 0), min(started), max(started)
            FROM t_episodes WHERE reward IS NOT NULL AND state <> 'deleted' AND adapter IS NOT NULL
            GROUP BY model, adapter, split, arm ORDER BY model, min(started), split, arm"""
        names = ("model", "adapter", "split", "arm", "episodes", "mean", "std", "first", "last")
        with self.db.read() as tx:
            return [dict(zip(names, row, strict=True)) for row in tx.all(sql)]

    def rewards_by_source(self) -> list[dict[str, Any]]:
        """Source, adapter, split, count, mean, std (of the sample; 0 for one) of the rewards that count: the latest of each name."""
        sql = """SELECT r.source, e.adapter, e.split, count(*), avg(r.value), coalesce(stddev_samp(r.value), 0) FROM (
            SELECT DISTINCT ON (eid, call, name, source) eid, source, value FROM t_rewards ORDER BY eid, call, name, source, seq DESC) r
            JOIN t_episodes e ON e.eid = r.eid WHERE e.state <> 'deleted' AND e.adapter IS NOT NULL
            GROUP BY r.source, e.adapter, e.split ORDER BY r.source, e.adapter, e.split"""
        names = ("source", "adapter", "split", "count", "mean", "std")
        with self.db.read() as tx:
            return [dict(zip(names, row, strict=True)) for row in tx.all(sql)]

    def days(self) -> list[str]:
        """Days with calls, ``YYYY-MM-DD``, oldest first."""
        with self.db.read() as tx:
            return [day for (day,) in tx.all("SELECT day FROM t_days ORDER BY day")]

    def drop_day(self, day: str) -> int:
        """Drop a day's calls, text and tokens; episodes and rewards stay. → Calls dropped."""
        with self.db.write() as tx:
            days = {d for (d,) in tx.all("SELECT day FROM t_days")}
            if day not in days:
                return 0
            table = schema.table_of(day)
            ((count,),) = tx.all(f"SELECT count(*) FROM {table}")
            tx.run(schema.view_sql(days - {day}))
            tx.run(f"DROP TABLE {table}")
            tx.run("DELETE FROM t_days WHERE day = ?", (day,))
        self._days.discard(day)
        self.parents.clear()
        self.db.settle()
        return int(count)
