"""How versions differ in what they do: lengths, tools, refusals."""

from __future__ import annotations

import statistics
from collections import Counter

from slipstream import contract as c
from slipstream.shared.intervals import difference, mean_interval
from slipstream_proxy.store.learning.rewards import OutcomeLog
from slipstream_proxy.store.read.tasks import WORST_RUNS_SHOWN
from slipstream_proxy.store.tables.driver import Driver, given
from slipstream_proxy.store.tables.rows import (
    name_of,
)
from slipstream_proxy.store.tables.tallies import own_runs

COMPARED_RUNS = 200
"""Runs of a version, and of its base model, whose behaviour is compared: the newest."""

SHARE_MEASURES = ("cut_off", "refusals", "tool_errors")
"""Of a run's calls."""

BEHAVIOUR_MEASURES = ("turns", "reply_tokens", "seconds", *SHARE_MEASURES)

MOST_TOOLS = 30

MOST_PAIRS = 5


class BehaviourReport:
    """What a version changed in behaviour: side measures and tools of its runs beside those of the base model."""

    def __init__(self, db: Driver, outcomes: OutcomeLog) -> None:
        self.db = db
        self.outcomes = outcomes

    def read(
        self, adapter: str, base: str, *, key: str | None = None, split: str | None = None, task: str | None = None
    ) -> c.Behaviour:
        """``key``: whose runs; None: all."""
        tests, params = given(("key = ?", key), ("split = ?", split), ("task = ?", task))
        where = " AND ".join(["state = 'done'", "calls > 0", "error IS NULL", *own_runs(split), *tests])
        of = f"SELECT task FROM t_episodes WHERE {where} AND adapter = ? AND task IS NOT NULL"
        common, names = f"{of} INTERSECT {of}", (*params, adapter, *params, base)
        newest = """SELECT adapter, eid, task FROM (SELECT adapter, eid, task, row_number() OVER
            (PARTITION BY adapter ORDER BY started DESC, eid) AS age FROM t_episodes
            WHERE {} AND adapter IN (?, ?)) e WHERE age <= ? ORDER BY age"""
        with self.db.read() as tx:
            ((tasks,),) = tx.all(f"SELECT count(*) FROM ({common}) t", names)
            if tasks:
                rows = tx.all(
                    newest.format(f"{where} AND task IN ({common})"), (*params, *names, adapter, base, COMPARED_RUNS)
                )
            else:
                rows = tx.all(newest.format(where), (*params, adapter, base, COMPARED_RUNS))
        eids = [eid for _, eid, _ in rows]
        measures, tools = self.outcomes.measures(eids, BEHAVIOUR_MEASURES), self.outcomes.tools(eids)
        called = [name for name, _ in sum(tools.values(), Counter[str]()).most_common(MOST_TOOLS)]
        for eid, of_run in measures.items():
            of_run |= {f"calls of {name}": float(tools[eid][name]) for name in called}
        sides = [[eid for name, eid, _ in rows if name == side] for side in (base, adapter)]
        newest_of: dict[str, dict[str | None, str]] = {base: {}, adapter: {}}
        for name, eid, named in rows:
            newest_of[name].setdefault(named, eid)
        pairs = [
            c.TaskPair(task=named, base=newest_of[base][named], version=eid)
            for named, eid in newest_of[adapter].items()
            if named is not None and named in newest_of[base]
        ]
        changes = []
        for name in (*BEHAVIOUR_MEASURES, *(f"calls of {tool}" for tool in called)):
            before, after = ([(m[name], e) for e in side if name in (m := measures[e])] for side in sides)
            if before and after:
                changes.append(_change(name, before, after))
        changes.sort(key=lambda x: -abs(x.difference) / (x.high - x.low) if x.high > x.low else 0.0)
        return c.Behaviour(
            adapter=adapter, base=base, tasks=tasks, latest=COMPARED_RUNS, changes=changes, pairs=pairs[:MOST_PAIRS]
        )


def _change(name: str, old: list[tuple[float, str]], new: list[tuple[float, str]]) -> c.BehaviourChange:
    top = 1.0 if name in SHARE_MEASURES else max(value for value, _ in (*old, *new))
    sides = []
    for values in ([value for value, _ in old], [value for value, _ in new]):
        mean, std = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
        low, high = mean_interval(mean, std, len(values), 0.0, top)
        sides.append(c.MeasureMean(n=len(values), mean=mean, low=low, high=high))
    base, version = sides
    d, low, high = difference((base.mean, base.low, base.high), (version.mean, version.low, version.high))
    runs = []
    for value, eid in sorted(new, reverse=d >= 0)[:WORST_RUNS_SHOWN]:
        key, episode = name_of(eid)
        runs.append(c.MeasuredRun(key=key, id=episode, value=value))
    return c.BehaviourChange(measure=name, base=base, version=version, difference=d, low=low, high=high, runs=runs)
