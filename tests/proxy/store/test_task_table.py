"""Conformance: the table by task, beside the same figures made with Python's statistics."""

from __future__ import annotations

import random
import statistics

import pytest
from tests.support.records import NOW, call, reward

from slipstream_proxy.store.read.tasks import LATEST_RUNS, WORST_RUNS_SHOWN


def test_each_task_with_base_and_now(store):
    chance = random.Random(3)
    runs, records = [], []
    for i in range(400):
        task, adapter, arm = (
            f"t{chance.randrange(3)}",
            *chance.choice((("m", "live"), ("m@1", "control"), ("m@2", "live"))),
        )
        runs.append((task, adapter, arm, chance.choice((0.0, 0.5, 1.0)), NOW + i, f"e{i}"))
        tags = {"task-text": f"Do {task}!"}
        records += [
            call(f"e{i}", task=task, tags=tags, adapter=adapter, arm=arm, at=NOW + i),
            reward(f"e{i}", runs[-1][3]),
        ]
    records += [call("only", task="new", adapter="m@2", at=NOW), reward("only", 1.0), call("open", task="t0", at=NOW)]
    store.ingest(records, {})
    table = store.reports.tasks.read()
    assert {t.task for t in table.tasks} == {"t0", "t1", "t2", "new"} and table.latest == LATEST_RUNS
    assert [t.now.mean for t in table.tasks] == sorted(t.now.mean for t in table.tasks)
    for standing in table.tasks[:3]:
        base = [r for r in runs if r[0] == standing.task and r[1] == "m"]
        now = [r for r in runs if r[0] == standing.task and r[1] == "m@2"][-LATEST_RUNS:]
        for told, mine in ((standing.base, base), (standing.now, now)):
            assert told.n == len(mine) and told.mean == pytest.approx(statistics.fmean(r[3] for r in mine))
            assert told.low < told.mean < told.high and told.calls == 1.0
        assert standing.difference == pytest.approx(standing.now.mean - standing.base.mean)
        assert standing.low < standing.difference < standing.high and standing.name == f"Do {standing.task}!"
        worst = sorted(now, key=lambda r: (r[3], -r[4]))[:WORST_RUNS_SHOWN]
        assert [(w.id, w.reward) for w in standing.worst] == [(r[5], r[3]) for r in worst]
    (alone,) = [t for t in table.tasks if t.task == "new"]
    assert alone.base is None and alone.difference is None and alone.now.low < 0.5 < alone.now.high
    assert store.reports.tasks.read(split="eval").tasks == [] == store.reports.tasks.read(key="nobody").tasks
