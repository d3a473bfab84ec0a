"""Rewards and costs over adapters and over time, counted by the database in one pass.

Each mean and share has a 95 % interval that holds for few runs, too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.contract import CostLine, CostTable, Learning, LearningPoint
from slipstream.shared.intervals import mean_interval, reward_bounds, wilson
from slipstream_proxy.log.records import IMPORTED_ID_PREFIX
from slipstream_proxy.store.tables.driver import IN, Driver, Tx, equal, given
from slipstream_proxy.store.tables.rows import dump, load
from slipstream_proxy.store.tables.schema import DayTables
from slipstream_proxy.store.tables.tallies import own_runs

MOST_SERIES = 20
NO_ADAPTER = "no adapter"
"""What stands for an adapter where there is none: of imported episodes, and of those that another server answered."""
ROLE_EXPRESSION = f"""CASE WHEN adapter IS NULL THEN '{NO_ADAPTER}' WHEN split = 'eval' THEN 'held-out'
    WHEN arm IN ('control', 'best') THEN 'control' ELSE 'live' END"""
"""What a run is for: to measure, to be compared with, or to serve and train. One that was imported, or that another
server answered, is none of these: it says nothing of what is served.
"""
MOST_BUCKETS = 120
SPAN_LENGTHS_S = (10.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0, 604_800.0, 2_592_000.0)
"""Seconds of a span of time: the shortest that makes at most ``MOST_BUCKETS`` of them."""


@dataclass(slots=True)
class LearningFilter:
    """``by``: ``adapter`` or ``time``. ``each``: ``task``, ``split``, ``arm``, ``role`` or ``tag.<name>`` makes one
    series of each value. ``tag``: (name, value). ``bucket``: seconds; None: by the time that there is.
    """

    by: str = "adapter"
    each: str | None = None
    key: str | None = None
    model: str | None = None
    task: str | None = None
    split: str | None = None
    arm: str | None = None
    tag: tuple[str, str] | None = None
    since: float | None = None
    until: float | None = None
    bucket: float | None = None
    success_from: float = 0.5


class _Span(NamedTuple):
    """Episodes of one series that an adapter answered, or that began in one span of time."""

    series: str | None
    adapter: str | None
    model: str | None
    span: float
    first: float
    last: float
    n: int
    mean: float
    std: float
    good: int


def _series_of(each: str | None) -> tuple[str, list[object]]:
    if each is None:
        return "NULL", []
    if each.startswith("tag."):
        # tags are compact JSON of plain names and values
        return "nullif(split_part(split_part(tags, ?, 2), '\"', 1), '')", [f'"{each[4:]}":"']
    return ROLE_EXPRESSION if each == "role" else each, []


def _where(wanted: LearningFilter, *always: str) -> tuple[str, list[object]]:
    tests, params = given(
        *equal(wanted, "key", "model", "task", "split", "arm"),
        ("strpos(tags, ?) > 0", dump(dict([wanted.tag]))[1:-1] if wanted.tag else None),
        ("started >= ?", wanted.since),
        ("started < ?", wanted.until),
    )
    return " AND ".join(["state <> 'deleted'", *always, *tests]), params


def version_of(adapter: str, model: str) -> int | None:
    """An adapter's version; 0 for the base model, None for what is no version of the model."""
    name, _, number = adapter.rpartition("@")
    if name == model and number.isdecimal():
        return int(number)
    return 0 if adapter == model or "@" not in adapter else None


class SeenRewards:
    """Between which the rewards of all runs of a model lie, whichever are looked at: so that one figure has one
    interval, wherever it stands.
    """

    def __init__(self, tx: Tx) -> None:
        sql = "SELECT model, min(reward), max(reward) FROM t_episodes WHERE reward IS NOT NULL GROUP BY model"
        self.by_model: dict[str, tuple[float, float]] = {
            model: reward_bounds(lowest, highest) for model, lowest, highest in tx.all(sql)
        }

    def of(self, model: str | None) -> tuple[float, float]:
        """``model`` None: of all models."""
        if model in self.by_model:
            return self.by_model[model]
        lows, highs = zip(*self.by_model.values(), strict=True) if self.by_model else ((0.0,), (1.0,))
        return min(lows), max(highs)


class LearningCurves:
    def __init__(self, db: Driver) -> None:
        self.db = db

    def read(self, wanted: LearningFilter) -> Learning:
        """At most ``MOST_SERIES`` series, those with the most episodes."""
        series, named = _series_of(wanted.each)
        where, params = _where(wanted, "reward IS NOT NULL", *own_runs(wanted.split))
        with self.db.read() as tx:
            bucket = self._bucket(tx, wanted, where, params) if wanted.by == "time" else None
            adapter, model = ("NULL", "NULL") if bucket else (f"coalesce(adapter, '{NO_ADAPTER}')", "model")
            span = f"floor(started / {bucket!r})" if bucket else "0"
            sql = f"""SELECT series, adapter, model, span, min(started), max(started), count(*), avg(reward),
                coalesce(stddev_samp(reward), 0), sum(CASE WHEN reward >= ? THEN 1 ELSE 0 END)
                FROM (SELECT {series} AS series, {adapter} AS adapter, {model} AS model, {span} AS span, started, reward
                FROM t_episodes WHERE {where}) q GROUP BY series, adapter, model, span"""
            rows = [_Span._make(r) for r in tx.all(sql, (wanted.success_from, *named, *params))]
            seen = SeenRewards(tx)
        weights: dict[str | None, int] = defaultdict(int)
        for row in rows:
            weights[row.series] += row.n
        shown = set(sorted(weights, key=lambda s: (-weights[s], s or ""))[:MOST_SERIES])
        points = [_point(row, bucket, seen.of(row.model)) for row in rows if row.series in shown]
        points.sort(key=lambda p: (p.series is None, p.series or "", p.version or 0 if bucket is None else 0, p.start))
        return Learning(
            points=points, bucket=bucket, success_from=wanted.success_from, left_out=len(weights) - len(shown)
        )

    def _bucket(self, tx: Tx, wanted: LearningFilter, where: str, params: list[object]) -> float:
        """What is asked for, but at most ten times ``MOST_BUCKETS`` spans of time."""
        ((first, last),) = tx.all(f"SELECT min(started), max(started) FROM t_episodes WHERE {where}", params)
        least = 0.0 if first is None else (last - first) / MOST_BUCKETS
        if wanted.bucket is not None:
            return max(wanted.bucket, least / 10)
        return next(
            (span for span in SPAN_LENGTHS_S if span >= least),
            SPAN_LENGTHS_S[-1] * math.ceil(least / SPAN_LENGTHS_S[-1]),
        )


def _point(row: _Span, bucket: float | None, bounds: tuple[float, float]) -> LearningPoint:
    n, share = row.n, int(row.good) / row.n
    start = row.span * bucket if bucket else row.first
    low, high = mean_interval(row.mean, row.std, n, *bounds)
    success_low, success_high = wilson(share, n)
    return LearningPoint(
        series=row.series,
        adapter=row.adapter,
        version=None if row.adapter in (None, NO_ADAPTER) else version_of(row.adapter, row.model or ""),
        start=start,
        end=start + bucket if bucket else row.last,
        n=n,
        mean=row.mean,
        se=row.std / math.sqrt(n) if n > 1 else None,
        low=low,
        high=high,
        success=share,
        success_se=math.sqrt(share * (1 - share) / (n - 1)) if n > 1 else None,
        success_low=success_low,
        success_high=success_high,
    )


MOST_LINES = 200
STEP_EVENT_KINDS = ("step", "skipped", "undone")
"""Kinds of events that say how long the trainer computed."""
RUNNING_SQL = """WITH c AS (SELECT eid, ts AS a, ts + seconds AS b FROM ({calls}) s WHERE id > ? AND seconds > 0),
    marks AS (SELECT t, sum(d) AS d FROM (SELECT a AS t, 1 AS d FROM c UNION ALL SELECT b, -1 FROM c) m GROUP BY t),
    spans AS (SELECT t, CAST(sum(d) OVER (ORDER BY t) AS FLOAT8) AS n, lead(t) OVER (ORDER BY t) - t AS dt FROM marks),
    clock AS (SELECT t, coalesce(sum(CASE WHEN n > 0 THEN dt * least(n, ?) / n ELSE 0 END) OVER
        (ORDER BY t ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS v FROM spans)
    SELECT e.series, sum(y.v - x.v) FROM c JOIN clock x ON x.t = c.a JOIN clock y ON y.t = c.b
    JOIN ({runs}) e ON e.eid = c.eid GROUP BY e.series"""
"""``clock`` says at each beginning and end of a call how much of an engine a call had that ran all along."""


def _meta(name: str) -> str:
    """A number in a score's meta, as text: databases have no common way to read JSON, and it is compact."""
    return f"split_part(split_part(split_part(r.meta, '\"{name}\":', 2), ',', 1), '}}', 1)"


def _number(text: str | None) -> float | None:
    with suppress(ValueError):
        found = float(text or "")
        return found if math.isfinite(found) else None
    return None


class CostReport:
    """What runs took: tokens, seconds of engines and of the trainer, and the judge's dollars."""

    def __init__(self, db: Driver, days: DayTables) -> None:
        self.db = db
        self.days = days

    def read(self, wanted: LearningFilter, engines: int = 1) -> CostTable:
        """``wanted.each`` may be ``adapter`` and ``model``, too. Siblings are counted: they cost as much as others.

        ``engines``: how many calls at once need not share one.
        """
        series, named = _series_of(wanted.each)
        where, params = _where(wanted)
        figures = "calls, prompt_tokens, completion_tokens"
        runs = f"SELECT eid, {series} AS series, {figures} FROM t_episodes WHERE {where}"
        given = (*named, *params)
        lines: dict[str | None, CostLine] = {}

        def line(name: str | None) -> CostLine:
            return lines.setdefault(name, CostLine(name=name))

        with self.db.read() as tx:
            sums = f"""SELECT series, count(*), sum(calls), sum(prompt_tokens), sum(completion_tokens)
                FROM ({runs}) q GROUP BY series"""
            for name, n, calls, asked, said in tx.all(sums, given):
                lines[name] = CostLine(
                    name=name, episodes=n, calls=int(calls), prompt_tokens=int(asked), completion_tokens=int(said)
                )
            tables = self.days.tables(tx, wanted.since)
            calls = " UNION ALL ".join(f"SELECT id, eid, ts, seconds FROM {t}" for t in ("t_calls_none", *tables))
            for name, seconds in tx.all(
                RUNNING_SQL.format(calls=calls, runs=runs), (f"{IMPORTED_ID_PREFIX}~", engines, *given)
            ):
                line(name).serving_seconds = max(0.0, float(seconds))
            self._judged(tx, runs, given, line)
            self._trained(tx, runs, given, line, by_version=wanted.each == "adapter")
        found = sorted(lines.values(), key=lambda x: (-x.prompt_tokens - x.completion_tokens, x.name or ""))
        priced = [x.dollars for x in found if x.dollars is not None]
        adds = [name for name in CostLine.model_fields if name not in ("name", "dollars")]
        total = CostLine(
            dollars=sum(priced) if priced else None, **{n: sum(getattr(x, n) for x in found) for n in adds}
        )
        return CostTable(lines=found[:MOST_LINES], total=total, left_out=max(0, len(found) - MOST_LINES))

    def _judged(self, tx: Tx, runs: str, given: Sequence[object], line: Callable[[str | None], CostLine]) -> None:
        """A score says what its whole group cost, and of how many runs that is."""
        sql = f"""SELECT e.series, {_meta("cost")}, {_meta("tokens")}, {_meta("judged_with")}, count(*) FROM t_rewards r
            JOIN ({runs}) e ON e.eid = r.eid WHERE r.source = 'judge' GROUP BY 1, 2, 3, 4"""
        for name, cost, tokens, of, n in tx.all(sql, given):
            share, found = n / (_number(of) or 1.0), line(name)
            if (dollars := _number(cost)) is not None:
                found.dollars = (found.dollars or 0.0) + dollars * share
            found.judge_tokens += (_number(tokens) or 0.0) * share

    def _trained(
        self, tx: Tx, runs: str, given: Sequence[object], line: Callable[[str | None], CostLine], *, by_version: bool
    ) -> None:
        weights: dict[str, dict[str | None, float]] = defaultdict(dict)
        sql = f"""SELECT m.batch, e.series, sum(e.completion_tokens + 1) FROM t_members m JOIN ({runs}) e
            ON e.eid = m.eid GROUP BY m.batch, e.series"""
        for batch, name, weight in tx.all(sql, given):
            weights[batch][name] = float(weight)
        sql = """SELECT m.batch, sum(e.completion_tokens + 1) FROM t_members m JOIN t_episodes e ON e.eid = m.eid
            GROUP BY m.batch"""
        wholes = {batch: float(whole) for batch, whole in tx.all(sql)}
        made: dict[str, str] = dict(tx.all("SELECT id, adapter FROM t_batches WHERE adapter IS NOT NULL"))
        waiting = 0.0
        """Of steps that are in no version yet."""
        for (text,) in tx.all(f"SELECT data FROM t_events WHERE kind {IN} ORDER BY id", (list(STEP_EVENT_KINDS),)):
            data = load(text, {})
            took = (_number(data.get("seconds")) or 0.0) * (_number(data.get("gpus")) or 1.0)
            batch = str(data.get("batch"))
            parts = weights.get(batch, {})
            whole = wholes.get(batch, 0.0)
            if not by_version:
                for name, weight in parts.items():
                    line(name).training_seconds += took * weight / whole
                continue
            waiting += took * sum(parts.values()) / whole if whole else 0.0
            adapter = made.get(batch) or data.get("adapter")
            if adapter and waiting:
                line(str(adapter)).training_seconds += waiting
                waiting = 0.0
        if waiting:
            line(None).training_seconds += waiting
