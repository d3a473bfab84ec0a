"""Each task's runs and rewards, by version."""

from __future__ import annotations

from collections import defaultdict

from slipstream.contract import TaskRuns, TaskStanding, TaskTable, WorstRun
from slipstream.shared.intervals import difference, mean_interval
from slipstream_proxy.store.read.curves import SeenRewards
from slipstream_proxy.store.tables.driver import Driver, given
from slipstream_proxy.store.tables.rows import (
    load,
)
from slipstream_proxy.store.tables.tallies import own_runs

WORST_RUNS_SHOWN = 3


LATEST_RUNS = 50
"""Runs of a task that stand for how it goes now: it need not have one of the newest version."""

MOST_TASKS = 2000


class TaskReport:
    """Each task: how its runs went with the base model and go now, how surely they differ, and its worst runs."""

    def __init__(self, db: Driver) -> None:
        self.db = db

    def read(self, *, key: str | None = None, split: str | None = None, model: str | None = None) -> TaskTable:
        """``key``: whose runs; None: all. Runs of control arms are left out: they are no runs of now."""
        tests, params = given(("key = ?", key), ("split = ?", split), ("model = ?", model))
        where = " AND ".join(["reward IS NOT NULL", "task IS NOT NULL", "state <> 'deleted'", *own_runs(split), *tests])
        runs = f"""SELECT * FROM (SELECT task, model, key, id, tags, started, reward, calls, completion_tokens,
            strpos(adapter, '@') > 0 AS made, row_number() OVER (PARTITION BY task, model, strpos(adapter, '@') > 0
            ORDER BY started DESC) AS age FROM t_episodes WHERE {where} AND adapter IS NOT NULL
            AND (strpos(adapter, '@') = 0 OR arm NOT IN ('control', 'best')))
            a WHERE NOT made OR age <= {LATEST_RUNS}"""
        sums = f"""SELECT task, model, made, count(*), avg(reward), coalesce(stddev_samp(reward), 0), avg(calls),
            avg(completion_tokens), max(tags) FROM ({runs}) r GROUP BY task, model, made"""
        worst = f"""SELECT task, model, key, id, reward FROM (SELECT task, model, key, id, reward, row_number() OVER
            (PARTITION BY task, model ORDER BY made DESC, reward, started DESC) AS place FROM ({runs}) r) w
            WHERE place <= {WORST_RUNS_SHOWN} ORDER BY place"""
        with self.db.read() as tx:
            rows, bad, seen = tx.all(sums, params), tx.all(worst, params), SeenRewards(tx)
        lows: dict[tuple[str, str], list[WorstRun]] = defaultdict(list)
        for task, name, owner, run, reward in bad:
            lows[task, name].append(WorstRun(key=owner, id=run, reward=reward))
        sides: dict[tuple[str, str], dict[bool, TaskRuns]] = defaultdict(dict)
        names: dict[tuple[str, str], str] = {}
        for task, name, made, n, mean, std, calls, tokens, tags in rows:
            low, high = mean_interval(mean, std, n, *seen.of(name))
            told = TaskRuns(n=n, mean=mean, low=low, high=high, calls=float(calls), tokens=float(tokens))
            sides[task, name][bool(made)] = told
            names[task, name] = load(tags, {}).get("task-text") or task
        found = [_standing(at, names[at], of.get(False), of.get(True), lows[at]) for at, of in sides.items()]
        found.sort(key=lambda t: (shown.mean if (shown := t.now or t.base) else 0.0, t.task))
        return TaskTable(tasks=found[:MOST_TASKS], left_out=max(0, len(found) - MOST_TASKS), latest=LATEST_RUNS)


def _standing(
    at: tuple[str, str], name: str, base: TaskRuns | None, now: TaskRuns | None, worst: list[WorstRun]
) -> TaskStanding:
    found = TaskStanding(task=at[0], model=at[1], name=name, base=base, now=now, worst=worst)
    if base is None or now is None:
        return found
    d, low, high = difference((base.mean, base.low, base.high), (now.mean, now.low, now.high))
    return found.model_copy(update={"difference": d, "low": low, "high": high})
