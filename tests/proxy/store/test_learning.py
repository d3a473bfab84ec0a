"""Conformance: rewards over adapters and time, beside the same figures made with Python's statistics."""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict

import pytest
from tests.support.records import NOW, call, reward, want
from tests.support.store_writes import add_event, put_adapter, take_ack

from slipstream.contract import Adapter, BatchAck, Event
from slipstream_proxy.store.read.curves import MOST_BUCKETS, MOST_SERIES, LearningFilter, version_of
from slipstream_proxy.store.read.groups import BatchFilter


@pytest.fixture
def runs(store):
    """60 episodes as (task, split, lang, adapter, started, reward)."""
    chance = random.Random(5)
    made, records = [], []
    for i in range(60):
        run = (
            f"t{chance.randrange(3)}", chance.choice(("train", "eval")), chance.choice(("de", "en", None)),
            chance.choice(("m", "m@1", "m@10")), NOW + 100.0 * i, chance.choice((0.0, 0.5, 1.0)),
        )  # fmt: skip
        made.append(run)
        task, split, lang, adapter, at, value = run
        tags = {"a": "x"} | ({"lang": lang} if lang else {})
        records += [
            call(f"e{i}", task=task, split=split, tags=tags, adapter=adapter, at=at),
            reward(f"e{i}", value, at=at),
        ]
    store.ingest([*records, call("open", at=NOW), call("bare", at=NOW, done=True)], {})
    return made


def check(points, expected: dict, name) -> None:
    assert {name(p) for p in points} == set(expected)
    for p in points:
        values = expected[name(p)]
        assert p.n == len(values)
        assert p.mean == pytest.approx(statistics.fmean(values))
        if len(values) > 1:
            assert p.se == pytest.approx(statistics.stdev(values) / math.sqrt(len(values)))
        else:
            assert p.se is None
        assert p.success == pytest.approx(sum(v >= 0.75 for v in values) / len(values))


def read(store, **wanted):
    return store.reports.learning.read(LearningFilter(success_from=0.75, **wanted))


@pytest.mark.parametrize(
    ("each", "place"), [(None, None), ("task", 0), ("split", 1), ("tag.lang", 2), ("tag.none", None)]
)
def test_by_adapter(store, runs, each, place):
    expected = defaultdict(list)
    for run in runs:
        expected[None if place is None else run[place], run[3]].append(run[5])
    found = read(store, by="adapter", each=each)
    check(found.points, expected, lambda p: (p.series, p.adapter))
    assert found.left_out == 0
    assert [p.version for p in found.points if p.series == found.points[0].series] == [0, 1, 10]


def test_by_time(store, runs):
    found = read(store, by="time", bucket=1000.0)
    expected = defaultdict(list)
    for run in runs:
        expected[math.floor(run[4] / 1000.0) * 1000.0].append(run[5])
    check(found.points, expected, lambda p: p.start)
    assert found.bucket == 1000.0
    assert [p.start for p in found.points] == sorted(expected)
    assert len(read(store, by="time").points) <= MOST_BUCKETS + 1


def test_filters(store, runs):
    for wanted, keep in (
        ({"task": "t1"}, lambda r: r[0] == "t1"),
        ({"split": "eval"}, lambda r: r[1] == "eval"),
        ({"tag": ("lang", "de")}, lambda r: r[2] == "de"),
        ({"since": NOW + 2000, "until": NOW + 4000}, lambda r: NOW + 2000 <= r[4] < NOW + 4000),
        ({"model": "other"}, lambda r: False),
        ({"key": "k9"}, lambda r: False),
    ):
        found = read(store, **wanted).points
        assert sum(p.n for p in found) == sum(map(keep, runs)), wanted


def test_what_was_imported_is_no_run_of_what_is_served(store):
    """Each text of another model, which says nothing of how serving goes."""
    for split in ("train", "eval"):
        own, other = call(f"own-{split}", split=split), call(f"log-{split}", split=split, trained=None, adapter=None)
        store.ingest([own, other, *(reward(f"{n}-{split}", v) for n, v in (("own", 0.25), ("log", 1.0)))], {})
    found = read(store, by="time", each="role")
    assert {p.series: (p.n, p.mean) for p in found.points} == {
        "live": (1, 0.25), "held-out": (1, 0.25), "no adapter": (2, 1.0),
    }  # fmt: skip


@pytest.mark.parametrize("order", [("ack", "version"), ("version", "ack")])
def test_a_version_that_is_published_late_has_its_batch_and_its_cost(store, order):
    store.ingest([*(call(n, done=True) for n in "ab"), reward("a", 0.0), reward("b", 1.0)], {})
    leased = store.batches.lease(want(), {}, 0, NOW + 3)
    told = {"lease": leased.lease, "outcome": "trained", "step": 1}
    version = {"name": "m@1", "model": "m", "version": 1, "state": "live", "created": NOW + 9, "path": "m@1"}
    for what in order:
        if what == "ack":
            assert take_ack(store, leased.id, BatchAck(**told), NOW + 4)
            add_event(store, Event(kind="step", at=NOW + 4, data={"batch": leased.id, "seconds": 5.0, "adapter": None}))
        else:
            put_adapter(store, Adapter(**version, batches=[leased.id]))
    assert [b.id for b in store.reports.groups.batch_page(BatchFilter(adapter="m@1")).batches] == [leased.id]
    assert store.reports.groups.batch(leased.id).adapter == "m@1"
    lines = {x.name: x.training_seconds for x in store.reports.costs.read(LearningFilter(each="adapter")).lines}
    assert lines["m@1"] == pytest.approx(5.0)
    assert None not in lines


def test_few_series_of_many(store):
    names = [f"e{i:02d}" for i in range(MOST_SERIES + 5)]
    store.ingest([call(name, task=f"task-{name}") for name in names] + [reward(name) for name in names], {})
    found = read(store, each="task")
    assert (len(found.points), found.left_out) == (MOST_SERIES, 5)
    assert read(store, by="time", task="nothing").points == []


def test_versions():
    assert [version_of(a, "m") for a in ("m", "m@3", "base", "x@3", "m@x")] == [0, 3, 0, None, None]


def test_what_runs_cost(store):
    """Two calls overlap by half a second at one engine, and share it; a score's cost is of its whole group."""

    def sampled(n: int) -> list:
        return [({"role": "assistant", "content": "yes"}, [7] * n, [-0.5] * n)]

    meta = {"cost": 0.04, "tokens": 800, "latency": 1.0, "judged_with": 2}
    store.ingest(
        [
            call("a", at=NOW, seconds=1.0, tags={"lang": "de"}, prompt=[1] * 10, choices=sampled(6), done=True),
            call("b", at=NOW + 0.5, seconds=1.0, adapter="m@1", prompt=[1] * 20, choices=sampled(2), done=True),
            *(reward(name, x, at=NOW + 2, source="judge", name="judge", meta=meta) for name, x in (("a", 0), ("b", 1))),
            *(reward(name, x, at=NOW + 2) for name, x in (("a", 0), ("b", 1))),
        ],
        {},
    )
    leased = store.batches.lease(want(), {}, 0, NOW + 3)
    add_event(store, Event(kind="step", at=NOW + 4, data={"batch": leased.id, "seconds": 5.0, "gpus": 2}))
    add_event(store, Event(kind="step", at=NOW + 9, data={"batch": leased.id, "seconds": 1.0, "adapter": "m@2"}))
    add_event(store, Event(kind="skipped", at=NOW + 9, data={"batch": "long ago", "seconds": 7.0}))

    def cost(each, engines=1):
        found = store.reports.costs.read(LearningFilter(each=each), engines)
        return {x.name: x for x in found.lines} | {"": found.total}

    by = cost("adapter")
    assert [by[n].serving_seconds for n in ("m", "m@1", "")] == pytest.approx([0.75, 0.75, 1.5])
    assert [by[n].dollars for n in ("m", "m@1", "")] == pytest.approx([0.02, 0.02, 0.04])
    assert (by["m@1"].prompt_tokens, by["m@1"].completion_tokens, by["m@1"].judge_tokens) == (20, 2, 400.0)
    assert by["m@2"].training_seconds == pytest.approx(11.0) and by["m@2"].episodes == 0
    assert by["m@2"].dollars is None and (by[""].episodes, by[""].calls) == (2, 2)
    by = cost("tag.lang")
    assert (by["de"].training_seconds, by[None].training_seconds) == pytest.approx((11.0 * 7 / 10, 11.0 * 3 / 10))
    assert cost("adapter", engines=2)["m"].serving_seconds == pytest.approx(1.0)
